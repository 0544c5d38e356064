"""From the weights w, which are trained and sent, to theta, which the network uses; numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.prune import keep_largest
from sparsyedge.edge.tensors import FloatArray

__all__ = [
    "NORM_FLOOR",
    "effective_weights",
    "exponent_name",
    "largest_singular_value",
    "layer_exponents",
    "network_weights",
    "positions_name",
    "power",
    "spectral_norm",
    "weights_of",
]

# Any exponent above 1 keeps zeros at zero; an empty layer has no magnitudes to derive one from.
EMPTY_LAYER_EXPONENT = 1.5
LEAST_EXPONENT = 1 + 1e-6
# Avoids dividing by the zero norm of an empty layer; too small to affect any other layer.
NORM_FLOOR = 1e-12


def exponent_name(weight: str) -> str:
    """The graphs' name for a layer's exponent, if layers have their own."""
    return f"{weight}.exponent"


def positions_name(weight: str) -> str:
    """The graphs' name for the flat positions of a layer's values, if a layer's theta depends on positions."""
    return f"{weight}.positions"


def layer_exponents(method: Method, state: Mapping[str, FloatArray], prunable: Iterable[str]) -> dict[str, FloatArray]:
    """The exponents of a model's layers under the graphs' names; empty unless the method derives them.

    They come from the model that the session loaded, and stay fixed while it trains.
    """
    if method.reparametrisation != "auto-beta":
        return {}
    exponents = {name: _exponent(method, state[name]) for name in prunable}
    return {exponent_name(name): np.array([value], dtype=np.float32) for name, value in exponents.items()}


def effective_weights(method: Method, weights: FloatArray) -> FloatArray:
    """theta of one layer; zero stays exactly zero."""
    if method.reparametrisation == "spectral":
        norm = np.float32(_norm(method, weights))
        return weights * np.abs(weights) / norm
    if method.reparametrisation == "auto-beta":
        return power(weights, _exponent(method, weights))
    return power(weights, method.beta)


def weights_of(method: Method, theta: FloatArray) -> FloatArray:
    """The w of one layer: `effective_weights` turns it back into theta, up to rounding. Zero stays exactly zero.

    Raises ConfigError for `auto-beta`, whose exponent depends on the w we are solving for.
    """
    if method.reparametrisation == "auto-beta":
        raise ConfigError(
            f"method {method.name} derives its exponents from the weights themselves, so the weights of a network that "
            f"was trained without it cannot be found; begin from a run of the same method"
        )
    if method.reparametrisation == "spectral":
        root = power(theta, 0.5)
        # w = c root gives theta c / norm(root): the norm is proportional to its matrix.
        return root * np.float32(_norm(method, root))
    return power(theta, 1 / method.beta)


def network_weights(method: Method, name: str, tensor: FloatArray, *, prunable: Sequence[str]) -> FloatArray:
    """A tensor of a state as evaluation and the delivered model use it: theta, for a prunable weight.

    Theta is that of all weights, or of those that a step would use.
    """
    if name not in prunable:
        return tensor
    if method.inference == "trained" and method.prune_weights != "none" and name in prunable[1:]:
        tensor = keep_largest(tensor, method.density)
    return effective_weights(method, tensor)


def power(weights: FloatArray, beta: float) -> FloatArray:
    """sign(w) |w|^beta; zero stays exactly zero."""
    # In place: for the largest layer of a model, each further copy would take a fifth of the model's memory.
    found = np.abs(weights)
    found **= np.float32(beta)
    return np.copysign(found, weights, out=found).astype(np.float32, copy=False)


def spectral_norm(weights: FloatArray) -> float:
    """The largest singular value of |W| as (outputs, inputs), by one power iteration from a vector of ones.

    |W| has no negative entry, so neither do its first singular vectors, and ones are never orthogonal to them.
    """
    magnitudes: NDArray[np.float64] = np.abs(weights.astype(np.float64)).reshape(len(weights), -1)
    left = magnitudes.sum(axis=1)
    left /= np.sqrt(left @ left + NORM_FLOOR)
    right = left @ magnitudes
    return float(np.sqrt(right @ right + NORM_FLOOR))


def largest_singular_value(weights: FloatArray) -> float:
    """The largest singular value of W as (outputs, inputs), with the floor of `spectral_norm`."""
    matrix: NDArray[np.float64] = weights.astype(np.float64).reshape(len(weights), -1)
    # Of the smaller of the two squares: it has the same eigenvalues.
    square = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return float(np.sqrt(max(0.0, float(np.linalg.eigvalsh(square)[-1])) + NORM_FLOOR))


def _norm(method: Method, weights: FloatArray) -> float:
    return largest_singular_value(weights) if method.has_exact_norm else spectral_norm(weights)


def _exponent(method: Method, weights: FloatArray) -> float:
    """1 + mean |w| over the largest |w|, or over the spectral norm of |W|."""
    largest = float(np.abs(weights).max())
    if largest == 0:
        return EMPTY_LAYER_EXPONENT
    mean = float(np.abs(weights).mean(dtype=np.float64))
    return max(LEAST_EXPONENT, 1 + mean / (largest if method.exponent == "max" else spectral_norm(weights)))
