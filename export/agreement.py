"""Checks that the exported graphs train like torch; refuses an export that does not.

Parity is teacher-forced: both sides get the same weights, statistics and batch before every step, because float32
trajectories drift apart on their own within a few steps. We only measure batches on which both sides make the same
discrete choices (ReLU signs, kept activations). A value that lands on different sides of a threshold moves a small
gradient by 1e-2. Torch's float32 does that against its own float64 too, so it says nothing about the graph, and we
draw another batch.
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
from torch import nn

from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.model.reparametrise import layer_exponents
from sparsyedge.edge.native import library_path
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.onnx_runtime import training_api
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import build_model
from sparsyedge.export.reference import RELU6_LIMIT, ReferenceStep, reference_step
from sparsyedge.export.rewrite import PRUNED_INPUT
from sparsyedge.export.rounding import chose_alike, nudges
from sparsyedge.export.training_agreement import STEPS as TRAINING_STEPS
from sparsyedge.export.training_agreement import verify_training

__all__ = ["Parity", "verify"]

STEPS = 3
MAX_BATCHES = 40
# A small batch has fewer values close to a threshold.
BATCH = 4
LEAST_SPARSITY = 0.5
"""Even a method that never prunes must handle zeros."""
# Large, to make gradients visible in the values after a step.
LEARNING_RATE = 1.0
OPTIMIZER_RATE = 0.01
# Rounding alone reaches 1e-5 when terms cancel. The smallest real mistake, wrong weight decay, shows up as 1e-3.
TOLERANCE = 3e-5
ROUNDING_FACTOR = 10
MOST_ROUNDING = 1e-3
# A tensor this small next to the largest is rounding noise from terms that cancel: behind BatchNorm the gradients of an
# output channel add up to zero, and a layer whose input is constant sees only their sum.
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
    """How many we drew to find steps with identical discrete choices."""
    plain: float = 0.0
    """Values after a step of the plain graph."""
    by_api: bool = False
    """Whether all but `plain` speak of the graphs for the training API; they speak of the plain graph otherwise."""


def verify(artifacts: Artifacts, model: nn.Module | None = None, *, seed: int = 0) -> Parity:
    """Compare one training step from dense weights and two from pruned ones with torch; ArtifactError on mismatch.

    The plain graph is compared always; the graphs for the training API where they were exported and can run. `model` is
    the exported module, used as scratch space; one of the zoo can be left out.
    """
    rng = np.random.default_rng(seed)
    model = _rebuilt(artifacts.manifest) if model is None else model
    if not artifacts.manifest.training.is_plain:
        return _Comparison(artifacts, model, rng).training_steps(SparseSession(artifacts))
    if not artifacts.manifest.has_api_files or training_api is None:
        return _verify_plain(_Comparison(artifacts, model, rng), SparseSession(artifacts))
    comparison = _ApiComparison(artifacts, model, rng)
    parity = _verify_api(comparison)
    return replace(parity, plain=_verify_plain(comparison, SparseSession(artifacts)).plain)


def _rebuilt(manifest: Manifest) -> nn.Module:
    spec = ModelSpec(manifest.model, manifest.width, manifest.classes, manifest.input_shape, task=manifest.task)
    return build_model(spec, beta=manifest.method.beta, seed=manifest.seed)


def _verify_api(comparison: _ApiComparison) -> Parity:
    """Compare steps of the training API with torch."""
    parity = Parity(by_api=True)
    while parity.steps < STEPS:
        if parity.batches == MAX_BATCHES:
            raise ArtifactError(
                f"the training graph and torch made other choices (ReLU signs, kept activations) in "
                f"{parity.batches - parity.steps} of {parity.batches} batches; {comparison.advice}"
            )
        # Round 1 trains dense weights, later rounds pruned ones. Both must be right.
        parity = comparison.step(parity, pruned=parity.steps > 0)
    return parity


def _verify_plain(comparison: _Comparison, session: SparseSession) -> Parity:
    """Compare steps of the plain graph with torch; returns the largest differences among the steps that agree.

    The plain graph does not show its discrete choices, so we assume that a batch that differs had other choices. A
    wrong graph cannot match every value within the tolerance on several batches.
    """
    parity, best = Parity(), math.inf
    while parity.steps < STEPS:
        if parity.batches == MAX_BATCHES:
            raise ArtifactError(
                f"the plain graph agreed with torch to {TOLERANCE:.0e} on {parity.steps} of {MAX_BATCHES} batches, "
                f"{STEPS} are needed; on the next one, the best differs from torch by {best:.1e} (relative L2): "
                f"do not use this export"
            )
        # In a warm-up a pruned model has whole inputs; one of the steps stands for that.
        told = JobInputs(keeps_inputs=comparison.warms_up and parity.steps == 1)
        step, allowed = comparison.plain_step(session, pruned=parity.steps > 0, inputs=told)
        agrees = step.plain <= allowed
        best = math.inf if agrees else min(best, step.plain)
        parity = replace(_worst(parity, step) if agrees else parity, batches=parity.batches + 1)
    return parity


def _worst(one: Parity, other: Parity) -> Parity:
    """Both together."""
    return Parity(
        loss=max(one.loss, other.loss),
        gradient=max(one.gradient, other.gradient),
        updated=max(one.updated, other.updated),
        plain=max(one.plain, other.plain),
        steps=one.steps + other.steps,
    )


class _Comparison:
    """The plain graph and torch, ready to take the same step."""

    def __init__(self, artifacts: Artifacts, model: nn.Module, rng: np.random.Generator) -> None:
        self._manifest = artifacts.manifest
        self._rng = rng
        self._dense = read_initial_state(artifacts)
        self._model = model

    @property
    def warms_up(self) -> bool:
        """Whether some rounds prune no inputs."""
        return self._manifest.method.warms_up

    def plain_step(self, session: SparseSession, *, pruned: bool, inputs: JobInputs) -> tuple[Parity, float]:
        """Take one step of the plain graph and one in torch from the same start.

        Returns how far they are apart, and how far they may be.
        """
        state = self._pruned_start() if pruned else self._untrivial(self._dense)
        x, y = self._draw_batch()
        reference = self._reference_step(state, x, y, inputs)
        session.load(state)
        ours = session.train_step(x, y, LEARNING_RATE, inputs=inputs)
        loss = abs(ours - reference.loss) / abs(reference.loss)
        after, theirs = session.state(), self._reference_state()
        updated = _Difference.of("", after, theirs).error
        # With a learning rate of 1, a trained value changes by its gradient.
        changes = ({name: side[name] - state[name] for name in reference.gradients} for side in (after, theirs))
        gradient = _Difference.of("", *changes).error
        worst = max(_rank(loss), _rank(updated))
        allowed = TOLERANCE
        if TOLERANCE < worst <= MOST_ROUNDING:
            # Deep nets magnify rounding: torch's float32 has an error of its own.
            _, exact = self._exact_step(state, x, y, inputs)
            own = max(_relative_errors({name: theirs[name] for name in after}, exact).values())
            allowed = max(TOLERANCE, min(ROUNDING_FACTOR * own, MOST_ROUNDING))
        return Parity(loss=loss, gradient=gradient, updated=updated, steps=1, plain=worst), allowed

    def _exact_step(
        self, state: State, x: FloatArray, y: Labels, inputs: JobInputs = NO_INPUTS
    ) -> tuple[Gradients, Gradients]:
        """The gradients in float64, and the state after the step."""
        model = copy.deepcopy(self._model).double()
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
        labels = torch.from_numpy(y)
        double = reference_step(
            model,
            self._manifest.method,
            torch.from_numpy(x).double(),
            labels.double() if labels.is_floating_point() else labels,
            learning_rate=LEARNING_RATE,
            prunable=self._manifest.prunable,
            inputs=inputs,
        )
        return double.gradients, {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}

    def training_steps(self, session: SparseSession) -> Parity:
        """Take steps of the run's optimizer on both sides; returns how far they are apart."""
        # AdamW moves every weight by about the rate; others move it by the gradient.
        rate = OPTIMIZER_RATE if self._manifest.training.optimizer == "adamw" else LEARNING_RATE
        worst = verify_training(
            session, self._model, self._manifest, self._pruned_start(), self._draw_batch, learning_rate=rate
        )
        return Parity(loss=worst, gradient=worst, updated=worst, plain=worst, steps=TRAINING_STEPS)

    def _draw_batch(self) -> tuple[FloatArray, Labels]:
        x = self._rng.standard_normal((BATCH, *self._manifest.input_shape), dtype=np.float32)
        if self._manifest.task == "regression":
            return x, self._rng.standard_normal((BATCH, self._manifest.outputs), dtype=np.float32)
        return x, self._rng.integers(0, self._manifest.classes, BATCH)

    def _reference_state(self) -> State:
        return {name: tensor.detach().numpy() for name, tensor in self._model.state_dict().items()}

    def _reference_step(self, state: State, x: FloatArray, y: Labels, inputs: JobInputs = NO_INPUTS) -> ReferenceStep:
        self._model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
        return reference_step(
            self._model,
            self._manifest.method,
            torch.from_numpy(x),
            torch.from_numpy(y),
            learning_rate=LEARNING_RATE,
            prunable=self._manifest.prunable,
            inputs=inputs,
        )

    def _pruned_start(self) -> State:
        """Weights pruned at least to the target; statistics and affine parameters away from their trivial values."""
        sparsity = max(self._manifest.method.sparsity, LEAST_SPARSITY)
        return self._untrivial(prune_global(self._dense, self._manifest.prunable, sparsity))

    def _untrivial(self, start: State) -> State:
        """The state with other statistics and affine parameters.

        With the initial ones, ReLU and a depthwise convolution keep the scale of a channel, which the next BatchNorm
        takes away: the gradient of the scale is rounding alone. A layer's weights stay, prunable or not: as large as a
        scale, they would make the net magnify rounding.
        """
        state = dict(start)
        for parameter in self._manifest.parameters:
            is_layer = len(parameter.shape) > 1 and parameter.name.endswith("weight")
            if not parameter.prunable and not is_layer:
                noise = self._rng.uniform(0.5, 1.5, parameter.shape).astype(np.float32)
                state[parameter.name] = noise if parameter.name.endswith(("weight", "var")) else noise - 1
        return state


class _ApiComparison(_Comparison):
    """The training API and torch as well."""

    def __init__(self, artifacts: Artifacts, model: nn.Module, rng: np.random.Generator) -> None:
        super().__init__(artifacts, model, rng)
        self._session = DenseSession(artifacts)
        self._probe = _GradientProbe(artifacts)
        self.advice = "do not use this export"
        """What to tell the user if no batch agrees; updated whenever the session differs from torch."""

    def step(self, parity: Parity, *, pruned: bool) -> Parity:
        """Take one step on both sides from the same start; a batch with other choices only counts as drawn."""
        state = self._pruned_start() if pruned else self._untrivial(self._dense)
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
        allowed, is_lost = TOLERANCE, False
        if not worst.error <= TOLERANCE:
            exact, _ = self._exact_step(state, x, y)
            own = self._own_error(state, x, y, reference, exact)
            # At this density filters are nearly empty, and the BatchNorm behind them divides by almost nothing.
            allowed = max(TOLERANCE, min(ROUNDING_FACTOR * own, MOST_ROUNDING))
            is_lost = ROUNDING_FACTOR * own > MOST_ROUNDING
            decay = {name: self._manifest.method.weight_decay * state[name] for name in exact}
            gradient = _Difference.of("gradient of ", *_without_vanishing(exact, decay, gradients, reference.gradients))
            worst = max(losses, gradient, update, key=lambda each: _rank(each.error))
        if not worst.error <= allowed:
            self.advice = (
                f"step {parity.steps + 1}: {worst.what} differs from torch by {worst.error:.1e} (relative L2), "
                f"{allowed:.0e} is allowed; do not use this export"
            )
            if not gradient.error <= allowed and not is_lost:
                raise ArtifactError(self.advice)
            # A batch on which torch's own float32 is lost in rounding tells nothing. Neither does the following:
            # The session fuses nodes that the probe keeps apart, rounds differently on some machines and hides its
            # choices. If the probe's gradients agree and the session does not, count a batch with other choices.
            return replace(parity, batches=parity.batches + 1)
        return Parity(
            loss=max(parity.loss, losses.error),
            gradient=max(parity.gradient, gradient.error),
            updated=max(parity.updated, update.error),
            steps=parity.steps + 1,
            batches=parity.batches + 1,
            by_api=True,
        )

    def _own_error(self, state: State, x: FloatArray, y: Labels, single: ReferenceStep, exact: Gradients) -> float:
        """How far torch's float32 gradients can be from those in float64 by rounding; steps the model.

        Vanishing tensors count: terms that cancel in one layer leave rounding noise in its neighbours.
        """
        nudged = (self._reference_step(near, near_x, y) for near, near_x in nudges(state, x))
        steps = [single, *(step for step in nudged if chose_alike(step, single))]
        return max(_relative_l2(value, exact[name]) for step in steps for name, value in step.gradients.items())


def _without_vanishing(exact: Gradients, decay: Gradients, *sides: Gradients) -> tuple[Gradients, ...]:
    """Both sides without tensors that are pure rounding noise: zero in float64 but for weight decay, small elsewhere.

    Such is the gradient of any shift that reaches another BatchNorm through convolutions alone.
    The noise depends on the machine's vector width; we have seen up to 4e-6 of the largest tensor.
    """
    largest = max(_norm(value) for value in exact.values())
    gone = {
        name
        for name, value in exact.items()
        if _norm(value - decay[name]) <= VANISHING * largest
        and all(_norm(side[name] - decay[name]) <= MOST_ROUNDING * largest for side in sides)
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
    """A sort key that puts NaN on top."""
    return math.inf if math.isnan(error) else error


def _relative_errors(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Relative L2 per tensor; 0 if the tensor vanishes on both sides."""
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
    """The graph's discrete choices, in the form of ReferenceStep."""

    relu_signs: list[NDArray[np.bool_]]
    kept_activations: dict[str, NDArray[np.bool_]]


class _GradientProbe:
    """The training graph with its gradients and discrete choices as outputs, in a plain session."""

    def __init__(self, artifacts: Artifacts) -> None:
        graph = onnx.load(artifacts.path("training"))
        nodes = graph.graph.node
        self._gradients = {p.name: f"{p.name}_grad" for p in artifacts.manifest.parameters if p.trainable}
        # ReLU6 is a Clip; it passes the gradient between its limits.
        self._relus = {
            node.output[0]: math.inf if node.op_type == "Relu" else RELU6_LIMIT
            for node in nodes
            if node.op_type in ("Relu", "Clip")
        }
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

    def run(self, state: State, x: FloatArray, y: Labels) -> tuple[State, _Choices]:
        """The gradients by parameter name, and the discrete choices."""
        feeds: dict[str, NDArray[Any]] = {"x": x, "labels": y, "lazy_reset_grad": np.array([True]), **state}
        feeds |= layer_exponents(self._manifest.method, state, self._manifest.prunable)
        for name, gradient in self._gradients.items():
            feeds[f"{gradient}.accumulation.buffer"] = np.zeros_like(state[name])
        inputs = {each.name: feeds[each.name] for each in self._session.get_inputs()}
        values = dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))
        choices = _Choices(
            relu_signs=[(values[output] > 0) & (values[output] < cap) for output, cap in self._relus.items()],
            kept_activations={weight: values[output] != 0 for weight, output in self._kept.items()},
        )
        return {name: values[gradient] for name, gradient in self._gradients.items()}, choices
