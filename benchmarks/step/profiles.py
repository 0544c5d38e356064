"""Sparsity profiles: the share of zeros in each layer, and states that match."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from sparsyedge.edge.errors import ConfigError, FrameError
from sparsyedge.edge.tensors import FloatArray, State, count_nonzero
from sparsyedge.edge.wire.frame import decode_frame

__all__ = ["PROFILES", "check_profile", "everywhere", "global_sparsity", "mask", "profile_state", "sparsity_of"]

# Measured on a SparsyFed model trained to 95 % (width 64, CIFAR-10).
TRAINED95 = {
    "conv1": 0.087,
    "layer1.0.conv1": 0.540,
    "layer1.0.conv2": 0.536,
    "layer1.1.conv1": 0.555,
    "layer1.1.conv2": 0.559,
    "layer2.0.conv1": 0.590,
    "layer2.0.conv2": 0.765,
    "layer2.0.downsample.0": 0.205,
    "layer2.1.conv1": 0.767,
    "layer2.1.conv2": 0.772,
    "layer3.0.conv1": 0.778,
    "layer3.0.conv2": 0.935,
    "layer3.0.downsample.0": 0.311,
    "layer3.1.conv1": 0.935,
    "layer3.1.conv2": 0.936,
    "layer4.0.conv1": 0.938,
    "layer4.0.conv2": 0.9997,
    "layer4.0.downsample.0": 0.430,
    "layer4.1.conv1": 0.9998,
    "layer4.1.conv2": 0.9996,
    "fc": 0.392,
}


def _uniform(sparsity: float) -> dict[str, float]:
    return {"conv1": 0.0, "layer": sparsity, "fc": 0.0}


PROFILES: Mapping[str, Mapping[str, float]] = {
    "trained95": TRAINED95,
    "paperlike": {"conv1": 0.3, "layer1": 0.6, "layer2": 0.8, "layer3": 0.92, "layer4": 0.975, "fc": 0.5},
    "uniform90": _uniform(0.90),
    "uniform95": _uniform(0.95),
    "uniform99": _uniform(0.99),
}
"""By profile: the share of zeros by prefix of the layer's name."""


def everywhere(sparsity: float) -> dict[str, float]:
    """The same share of zeros in every prunable weight of any model."""
    return {"": sparsity}


def profile_state(profile: str, initial: State, prunable: Iterable[str], *, seed: int) -> State:
    """The initial state under random masks of a named profile, or the whole state of a file or of a finished run."""
    if profile in PROFILES:
        return mask(initial, prunable, PROFILES[profile], seed=seed)
    check_profile(profile)
    path = Path(profile)
    return _read(path, initial) if path.suffix == ".npz" else _read_model(path, initial)


def check_profile(profile: str) -> None:
    """Raise ConfigError unless it is a name or could be a file; takes no time, unlike an export."""
    path = Path(profile)
    if profile not in PROFILES and path.suffix not in (".npz", ".frame") and not path.is_dir():
        raise ConfigError(
            f"no profile {profile!r}; there are: {', '.join(PROFILES)}, or the path of an .npz file, of a model.frame "
            f"or of a run's folder"
        )


def mask(initial: State, prunable: Iterable[str], sparsities: Mapping[str, float], *, seed: int) -> State:
    """A copy of the state with exactly the nearest number of zeros in each prunable weight, at random places."""
    rng = np.random.default_rng(seed)
    state = {name: tensor.copy() for name, tensor in initial.items()}
    for name in prunable:
        flat = state[name].reshape(-1)
        zeros = round(sparsity_of(name, sparsities) * flat.size)
        flat[rng.permutation(flat.size)[:zeros]] = 0.0
    return state


def sparsity_of(name: str, sparsities: Mapping[str, float]) -> float:
    """The profile's share of zeros for the named weight."""
    try:
        return next(share for prefix, share in sparsities.items() if name.startswith(prefix))
    except StopIteration:
        raise ConfigError(f"the profile says nothing about {name}; it knows {', '.join(sparsities)}") from None


def global_sparsity(state: Mapping[str, FloatArray], prunable: Iterable[str]) -> float:
    """The share of exact zeros in all prunable weights together."""
    names = tuple(prunable)
    return 1 - count_nonzero(state, names) / sum(state[name].size for name in names)


def _read(path: Path, initial: State) -> State:
    """The tensors `cur/<name>` of a file, each of the shape that the model has."""
    if not path.is_file():
        raise ConfigError(f"profile {path} does not exist; give an .npz file or one of {', '.join(PROFILES)}")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in initial if f"cur/{name}" not in file]
            if missing:
                raise ConfigError(
                    f"profile {path} lacks {len(missing)} of {len(initial)} tensors, the first is cur/{missing[0]}; "
                    f"it must hold the whole state of this model as cur/<parameter>"
                )
            state = {name: np.ascontiguousarray(file[f"cur/{name}"], dtype=np.float32) for name in initial}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"profile {path} is not a readable .npz file: {error}") from error
    for name, tensor in state.items():
        if tensor.shape != initial[name].shape:
            raise ConfigError(
                f"profile {path} has cur/{name} of shape {tensor.shape}, the model has {initial[name].shape}; "
                f"give the --width that the file was made for"
            )
    return state


def _read_model(path: Path, initial: State) -> State:
    """The model in a frame, or the one that the run in a folder ended with."""
    # Imported here: it brings ONNX Runtime along, which named profiles do not need.
    from sparsyedge.coordinator.model.deliver import FRAME_NAME

    file = path / FRAME_NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"profile {file} does not exist; a run writes it when it ends. Name the folder of a finished run, a frame, "
            f"an .npz file or one of {', '.join(PROFILES)}"
        )
    try:
        return decode_frame(file.read_bytes(), {name: tensor.shape for name, tensor in initial.items()}).state
    except FrameError as error:
        raise ConfigError(
            f"profile {file} holds no state of this model: {error}; give the --model and --width that the run had"
        ) from error
