"""The zoo's models in the fused layout: their sizes, and one step beside torch from the same weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from fixtures.artifacts import ExportOnce
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export.fused.layers import read_network
from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.models import MODELS, build_model, prunable_names, state_of
from sparsyedge.export.reference import reference_step
from sparsyedge.export.trace import INPUT_NAME, trace

pytestmark = pytest.mark.heavy

SPECS = {
    "mobilenet_v2": ModelSpec("mobilenet_v2", 8, 10, (3, 32, 32)),
    "ds_cnn": ModelSpec("ds_cnn", 24, 12, (1, 49, 10)),
}
# So large that a value after the step is its gradient: what was there before does not round it away.
RATE = 1000.0
TOLERANCE = 1e-5
# A tensor this small next to the largest gradient is what is left of terms that cancel.
SMALL = 1e-2
BATCHES = 12
# As in export/agreement.py: how much worse than float32 in torch a sum in another order may be.
ROUNDING = 10

Gradients = Mapping[str, NDArray[Any]]


@pytest.mark.parametrize(
    ("spec", "parameters", "prunable"),
    [
        (ModelSpec("mobilenet_v2", 64, 1000, (3, 32, 32)), 3_504_872, 3_469_760),  # torchvision's mobilenet_v2
        (ModelSpec("mobilenet_v2", 32, 10, (3, 32, 32)), 700_490, 681_936),
        (ModelSpec("ds_cnn", 64, 12, (1, 49, 10)), 23_180, 22_016),
    ],
)
def test_models_have_the_papers_number_of_parameters(spec: ModelSpec, parameters: int, prunable: int) -> None:
    with torch.device("meta"):  # sizes need no weights
        model = MODELS[spec.model](spec)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert (sum(sizes.values()), sum(sizes[name] for name in prunable_names(model))) == (parameters, prunable)


@pytest.fixture(scope="module", params=SPECS)
def artifacts(request: pytest.FixtureRequest, export_once: ExportOnce) -> Artifacts:
    return export_once(SPECS[request.param], make_method("sparsyfed", sparsity=0.9, weight_decay=0.0), 1)


def start(model: nn.Module, sparsity: float) -> State:
    """Random zeros, and affine parameters and statistics away from their trivial values."""
    rng = np.random.default_rng(0)
    state = state_of(model)
    for name, value in state.items():
        if name in prunable_names(model):
            value[rng.random(value.shape) < sparsity] = 0
        elif name.endswith(("weight", "var")):
            value[...] = rng.uniform(0.5, 1.5, value.shape)
        else:
            value[...] = rng.uniform(-0.5, 0.5, value.shape)
    return state


def torch_gradients(model: nn.Module, artifacts: Artifacts, state: State, x: Tensor, y: Tensor) -> tuple[float, State]:
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
    step = reference_step(model, artifacts.manifest.method, x, y, learning_rate=0.0)
    return step.loss, step.gradients


def our_gradients(session: SparseSession, state: State, x: Tensor, y: Tensor) -> tuple[float, Gradients]:
    session.load(state)
    loss = session.train_step(x.numpy(), y.numpy(), RATE)
    after = session.state()
    return loss, {name: (state[name].astype(np.float64) - after[name]) / RATE for name in state}


def errors(found: Gradients, exact: Gradients) -> dict[str, float]:
    """Relative L2 by tensor."""
    norms = {name: float(np.linalg.norm(value)) for name, value in exact.items()}
    least = SMALL * max(norms.values())
    return {name: float(np.linalg.norm(found[name] - value)) / max(norms[name], least) for name, value in exact.items()}


@pytest.mark.parametrize("batch", [16, 5])
@pytest.mark.parametrize("sparsity", [0.0, 0.9])
def test_a_teacher_forced_step_agrees_with_torch(artifacts: Artifacts, sparsity: float, batch: int) -> None:
    """A value next to a threshold may fall on either side of it. It then moves the gradients of its layer and of those
    before it, so each tensor needs one batch on which it agrees with float64: to 1e-5, or within some times the error
    of torch's float32 where the net magnifies rounding."""
    manifest = artifacts.manifest
    spec = SPECS[manifest.model]
    model = build_model(spec, beta=manifest.method.beta, seed=manifest.seed)
    double = copy.deepcopy(model).double()
    state, session = start(model, sparsity), SparseSession(artifacts)
    rng = np.random.default_rng(7)
    best: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for _ in range(BATCHES):
        x = torch.from_numpy(rng.standard_normal((batch, *spec.input_shape), dtype=np.float32))
        y = torch.from_numpy(rng.integers(0, spec.classes, batch))
        exact_loss, exact = torch_gradients(double, artifacts, state, x.double(), y)
        loss, ours = our_gradients(session, state, x, y)
        assert loss == pytest.approx(exact_loss, rel=TOLERANCE)
        _, single = torch_gradients(model, artifacts, state, x, y)
        for smallest, found in ((best, ours), (theirs, single)):
            for name, error in errors(found, exact).items():
                smallest[name] = min(smallest.get(name, np.inf), error)
        if all(best[name] <= max(TOLERANCE, ROUNDING * theirs[name]) for name in best):
            return
    worst = max(best, key=lambda name: best[name] / max(TOLERANCE, ROUNDING * theirs[name]))
    pytest.fail(f"the gradient of {worst} is off by {best[worst]:.1e} at best, in torch by {theirs[worst]:.1e}")


def test_the_whole_step_runs_in_ops_of_ours(artifacts: Artifacts) -> None:
    nodes = onnx.load(artifacts.path("sparse_step")).graph.node
    assert {node.op_type for node in nodes if node.domain != OP_DOMAIN} == {"Shape"}
    assert sum(node.op_type == "SaveActivation" for node in nodes) == len(artifacts.manifest.prunable)


# ---- what the graph reader understands -------------------------------------------------------------------------------


class Odd(nn.Module):
    """Biases without BatchNorm, a residual with three uses, pooling of several kinds."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.width
        self.first = nn.Conv2d(spec.input_shape[0], width, (5, 2), 2, (2, 1))
        self.second = nn.Conv2d(width, width, 3, padding=1, groups=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 1, bias=False) for _ in range(2))
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(width, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.second(self.first(x)))
        y = torch.relu(self.norms[1](self.convs[0](x)) + x)
        y = self.norms[2](self.convs[1](y)) + x
        logits: Tensor = self.fc(nn.functional.adaptive_avg_pool2d(self.pool(y), 1).flatten(1))
        return logits


def test_bias_groups_and_several_uses_of_a_residual_agree_with_torch(
    monkeypatch: pytest.MonkeyPatch, export_once: ExportOnce
) -> None:
    monkeypatch.setattr("sparsyedge.export.models.MODELS", {"odd": Odd})
    spec = ModelSpec("odd", 6, 4, (2, 12, 9))
    artifacts = export_once(spec, make_method("sparsyfed", sparsity=0.5, weight_decay=0.0), 1)
    model = build_model(spec, beta=artifacts.manifest.method.beta, seed=1)
    state, session = start(model, 0.3), SparseSession(artifacts)
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.standard_normal((7, *spec.input_shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, spec.classes, 7))
    exact_loss, exact = torch_gradients(model.double(), artifacts, state, x.double(), y)
    loss, ours = our_gradients(session, state, x, y)
    assert loss == pytest.approx(exact_loss, rel=TOLERANCE)
    assert max(errors(ours, exact).values()) <= TOLERANCE


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Conv2d(3, 4, 3, dilation=2), "a convolution with dilation"),
        (nn.Conv2d(3, 4, 3, stride=(2, 1)), "strides other than 1 or 2 both ways"),
        (nn.Conv2d(3, 4, 3, stride=3), "strides other than 1 or 2 both ways"),
        (nn.Dropout(0.5), "operator Dropout"),
        (nn.ReLU6(), "operator Clip"),
        (nn.AvgPool2d(2), "average-pooling over less than the plane"),
    ],
)
def test_layers_that_the_layout_lacks_are_refused_by_name(layer: nn.Module, message: str) -> None:
    spec = ModelSpec("one layer", 4, 4, (3, 9, 9))
    forward = trace(nn.Sequential(layer), spec, training=True)
    with pytest.raises(ArtifactError, match=message):
        read_network(forward, INPUT_NAME)
