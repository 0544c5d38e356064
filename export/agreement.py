"""Do the exported graphs train as torch does? An export that does not agree is refused.

Parity is teacher-forced: before every step both sides get the same weights, statistics and batch, because float32
trajectories drift apart by themselves within a few steps. It is measured on batches for which both sides make the same
discrete choices (ReLU signs, kept activations). Where a value falls on different sides of a threshold, one flip alone
moves a small gradient by 1e-2, in torch's float32 against its float64 as much as here, and says nothing of the graph:
such a batch is replaced by another.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.model.reparametrise import layer_exponents
from sparsyedge.edge.native import library_path
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export.models import ModelSpec, build_model
from sparsyedge.export.reference import ReferenceStep, reference_step
from sparsyedge.export.rewrite import PRUNED_INPUT

__all__ = ["Parity", "verify"]

STEPS = 3
SPARSE_STEPS = 2
MAX_BATCHES = 40
# A small batch holds fewer values that could lie next to a threshold.
BATCH = 4
LEAST_SPARSITY = 0.5
"""Also a method that never prunes must know what to do about zeros."""
# Large, so that the values after a step tell what its gradients were.
LEARNING_RATE = 1.0
# Rounding alone reaches 1e-5 where terms cancel; the least that a graph can get wrong, weight decay, shows as 1e-3.
TOLERANCE = 3e-5
ROUNDING_FACTOR = 10
MOST_ROUNDING = 1e-3
# A tensor this small beside the largest is what rounding leaves of terms that cancel: behind BatchNorm the gradients of
# an output channel add up to zero, and a layer that is fed the same value everywhere sees nothing but their sum.
VANISHING = 1e-6

Gradients = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Parity:
    """The largest relative differences between the graphs and torch."""

    loss: float = 0.0
    gradient: float = 0.0
    updated: float = 0.0
    """Parameters and running statistics after the step."""
    steps: int = 0
    batches: int = 0
    """How many were drawn to find the steps in which all discrete choices coincide."""
    plain: float = 0.0
    """Values after a step of the plain graph."""


def verify(artifacts: Artifacts, *, seed: int = 0) -> Parity:
    """Compare one training step from dense weights and two from pruned ones with torch; raises ArtifactError."""
    comparison = _Comparison(artifacts, np.random.default_rng(seed))
    parity = Parity()
    while parity.steps < STEPS:
        if parity.batches == MAX_BATCHES:
            raise ArtifactError(
                f"the training graph and torch made other choices (ReLU signs, kept activations) in "
                f"{parity.batches - parity.steps} of {parity.batches} batches; {comparison.advice}"
            )
        # Round 1 trains dense weights, every later round pruned ones: both must be right.
        parity = comparison.step(parity, pruned=parity.steps > 0)
    return replace(parity, plain=_verify_sparse(comparison, SparseSession(artifacts)))


def _verify_sparse(comparison: _Comparison, session: SparseSession) -> float:
    """Compare steps of the sparse graph with torch; returns the largest difference among those that agree.

    The sparse graph keeps its choices to itself, so a batch on which it differs is taken for one with other choices; to
    agree in every value to the tolerance on several batches is not given to a graph that computes something else.
    """
    agreeing: list[float] = []
    for _ in range(MAX_BATCHES):
        error = comparison.sparse_step(session)
        if error <= TOLERANCE:
            agreeing.append(error)
        if len(agreeing) == SPARSE_STEPS:
            return max(agreeing)
    raise ArtifactError(
        f"the sparse graph agreed with torch to {TOLERANCE:.0e} on {len(agreeing)} of {MAX_BATCHES} batches, "
        f"{SPARSE_STEPS} are needed; do not use this export"
    )


class _Comparison:
    """Both sides, ready to take the same step."""

    def __init__(self, artifacts: Artifacts, rng: np.random.Generator) -> None:
        self._manifest = artifacts.manifest
        self._rng = rng
        self._session = DenseSession(artifacts)
        self._probe = _GradientProbe(artifacts)
        self._dense = self._session.state()
        spec = ModelSpec(self._manifest.model, self._manifest.width, self._manifest.classes, self._manifest.input_shape)
        self.advice = "do not use this export"
        """What to do where nothing agrees, after the last step in which the session differed from torch."""
        self._model = build_model(spec, beta=self._manifest.method.beta, seed=self._manifest.seed)

    def step(self, parity: Parity, *, pruned: bool) -> Parity:
        """Take one step on both sides from one start; a batch with other choices only counts as drawn."""
        state = self._pruned_start() if pruned else self._dense
        x, y = self._draw_batch()
        reference = self._reference_step(state, x, y)
        gradients, choices = self._probe.run(state, x, y)
        if not _same_choices(choices, reference):
            return replace(parity, batches=parity.batches + 1)
        self._session.load(state)
        loss = self._session.train_step(x, y, LEARNING_RATE)
        updated = self._reference_state()
        losses = _Difference.of("loss", {"": np.array([loss])}, {"": np.array([reference.loss])})
        gradient = _Difference.of("gradient of ", gradients, reference.gradients)
        update = _Difference.of("updated ", self._session.state(), updated)
        worst = max(losses, gradient, update, key=lambda each: _rank(each.error))
        allowed = TOLERANCE
        if not worst.error <= TOLERANCE:
            exact = self._exact_gradients(state, x, y)
            allowed = _rounding(reference, exact)
            gradient = _Difference.of("gradient of ", *_without_vanishing(exact, gradients, reference.gradients))
            worst = max(losses, gradient, update, key=lambda each: _rank(each.error))
        if not worst.error <= allowed:
            self.advice = (
                f"step {parity.steps + 1}: {worst.what} differs from torch by {worst.error:.1e} (relative L2), "
                f"{allowed:.0e} is allowed; do not use this export"
            )
            if not gradient.error <= allowed:
                raise ArtifactError(self.advice)
            # The session fuses nodes that the probe shows, rounds otherwise on some machines, and keeps its choices to
            # itself: where the probe's gradients agree and it does not, it is one more batch with other choices.
            return replace(parity, batches=parity.batches + 1)
        return Parity(
            loss=max(parity.loss, losses.error),
            gradient=max(parity.gradient, gradient.error),
            updated=max(parity.updated, update.error),
            steps=parity.steps + 1,
            batches=parity.batches + 1,
        )

    def _exact_gradients(self, state: State, x: FloatArray, y: NDArray[np.int64]) -> Gradients:
        """The gradients in float64."""
        model = copy.deepcopy(self._model).double()
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
        double = reference_step(
            model, self._manifest.method, torch.from_numpy(x).double(), torch.from_numpy(y), learning_rate=LEARNING_RATE
        )
        return double.gradients

    def sparse_step(self, session: SparseSession) -> float:
        """Take one step of the sparse graph and one in torch; returns the largest relative L2 difference."""
        state = self._pruned_start()
        x, y = self._draw_batch()
        reference = self._reference_step(state, x, y)
        session.load(state)
        loss = session.train_step(x, y, LEARNING_RATE)
        updated = self._reference_state()
        errors = _relative_errors(session.state(), updated)
        return max(*errors.values(), abs(loss - reference.loss) / abs(reference.loss))

    def _draw_batch(self) -> tuple[FloatArray, NDArray[np.int64]]:
        x = self._rng.standard_normal((BATCH, *self._manifest.input_shape), dtype=np.float32)
        return x, self._rng.integers(0, self._manifest.classes, BATCH)

    def _reference_state(self) -> State:
        return {name: tensor.detach().numpy() for name, tensor in self._model.state_dict().items()}

    def _reference_step(self, state: State, x: FloatArray, y: NDArray[np.int64]) -> ReferenceStep:
        self._model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
        return reference_step(
            self._model, self._manifest.method, torch.from_numpy(x), torch.from_numpy(y), learning_rate=LEARNING_RATE
        )

    def _pruned_start(self) -> State:
        """Weights pruned to the target at least; statistics and affine parameters away from their trivial values."""
        sparsity = max(self._manifest.method.sparsity, LEAST_SPARSITY)
        state = prune_global(self._dense, self._manifest.prunable, sparsity)
        for parameter in self._manifest.parameters:
            if not parameter.prunable:
                noise = self._rng.uniform(0.5, 1.5, parameter.shape).astype(np.float32)
                state[parameter.name] = noise if parameter.name.endswith(("weight", "var")) else noise - 1
        return state


def _rounding(single: ReferenceStep, exact: Gradients) -> float:
    """What is allowed on a batch that magnifies rounding: some times what torch differs from itself in float64.

    BatchNorm behind filters that are nearly empty divides by almost nothing, which very sparse weights bring about.
    Tensors that vanish count here: where terms cancel in one layer, they leave rounding in its neighbours.
    """
    own = max(_relative_l2(value, exact[name]) for name, value in single.gradients.items())
    return min(max(TOLERANCE, ROUNDING_FACTOR * own), MOST_ROUNDING)


def _without_vanishing(exact: Gradients, *sides: Gradients) -> tuple[Gradients, ...]:
    """Both sides without the tensors that are nothing but rounding: zero in float64, small on either side.

    How much rounding leaves of terms that cancel depends on the machine's vectors: up to 4e-6 of the largest was seen.
    """
    largest = max(_norm(value) for value in exact.values())
    gone = {
        name
        for name, value in exact.items()
        if _norm(value) <= VANISHING * largest and all(_norm(side[name]) <= MOST_ROUNDING * largest for side in sides)
    }
    return tuple({name: value for name, value in side.items() if name not in gone} for side in sides)


def _same_choices(choices: _Choices, reference: ReferenceStep) -> bool:
    signs = zip(choices.relu_signs, reference.relu_signs, strict=True)
    kept = reference.kept_activations
    return all(np.array_equal(ours, theirs.numpy()) for ours, theirs in signs) and all(
        np.array_equal(ours, kept[name].numpy()) for name, ours in choices.kept_activations.items()
    )


@dataclass(frozen=True)
class _Difference:
    """The tensor that differs most, by relative L2."""

    what: str
    error: float

    @classmethod
    def of(cls, what: str, ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> _Difference:
        errors = _relative_errors(ours, theirs)
        name = max(errors, key=lambda key: _rank(errors[key]))
        return cls(f"{what}{name}", errors[name])


def _rank(error: float) -> float:
    """For sorting, with NaN on top."""
    return math.inf if math.isnan(error) else error


def _relative_errors(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """By relative L2; a tensor that vanishes on both sides agrees."""
    nothing = VANISHING * max(_norm(theirs[name]) for name in ours)
    return {
        name: 0.0 if _norm(value) <= nothing and _norm(theirs[name]) <= nothing else _relative_l2(value, theirs[name])
        for name, value in ours.items()
    }


def _relative_l2(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    scale = _norm(theirs)
    difference = _norm(ours.astype(np.float64) - theirs)
    return difference / scale if scale > 0 else difference


def _norm(tensor: NDArray[Any]) -> float:
    return float(np.linalg.norm(tensor.astype(np.float64).reshape(-1)))


@dataclass(frozen=True)
class _Choices:
    """What the graph decided on the way, as ReferenceStep has it."""

    relu_signs: list[NDArray[np.bool_]]
    kept_activations: dict[str, NDArray[np.bool_]]


class _GradientProbe:
    """The training graph with its gradients and discrete choices as outputs, in a plain session."""

    def __init__(self, artifacts: Artifacts) -> None:
        graph = onnx.load(artifacts.path("training"))
        nodes = graph.graph.node
        self._gradients = {p.name: f"{p.name}_grad" for p in artifacts.manifest.parameters if p.trainable}
        self._relus = [node.output[0] for node in nodes if node.op_type == "Relu"]
        kept = [node.output[0] for node in nodes if node.op_type == "PruneActivation"]
        self._kept = {name.removesuffix(PRUNED_INPUT): name for name in kept if name.endswith(PRUNED_INPUT)}
        self._manifest = artifacts.manifest
        self._outputs = [*self._gradients.values(), *self._relus, *self._kept.values()]
        graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._outputs)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.register_custom_ops_library(str(library_path()))
        self._session = onnxruntime.InferenceSession(
            graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, state: State, x: FloatArray, y: NDArray[np.int64]) -> tuple[State, _Choices]:
        """The gradients by parameter name, and the choices made on the way to them."""
        feeds: dict[str, NDArray[Any]] = {"x": x, "labels": y, "lazy_reset_grad": np.array([True]), **state}
        feeds |= layer_exponents(self._manifest.method, state, self._manifest.prunable)
        for name, gradient in self._gradients.items():
            feeds[f"{gradient}.accumulation.buffer"] = np.zeros_like(state[name])
        inputs = {each.name: feeds[each.name] for each in self._session.get_inputs()}
        values = dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))
        choices = _Choices(
            relu_signs=[values[output] > 0 for output in self._relus],
            kept_activations={weight: values[output] != 0 for weight, output in self._kept.items()},
        )
        return {name: values[gradient] for name, gradient in self._gradients.items()}, choices
