"""Any torch module as a training step: that it trains as torch does, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from sparsyedge.edge.data import Labels
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.model.training import make_training
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.job_inputs import NO_INPUTS, inputs_of
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.model_spec import ModelChoices, ModelSpec
from sparsyedge.export.reference import reference_step

pytestmark = pytest.mark.heavy

OWN = f"{Path(__file__).parent / 'modules.py'}"
SPARSITY = 0.9
TOLERANCE = 1e-5

SIGNALS = ModelSpec("sensor_cnn", 4, 6, (3, 32), sample_type="float32")
VECTORS = ModelSpec("mlp", 16, 2, (10,), sample_type="float32", task="regression")
IMAGES = ModelSpec("vit_tiny", 4, 5, (3, 8, 8))
RARE = ModelSpec(f"{OWN}:Rarities", 1, 5, (3, 8, 8))
MIXED = ModelSpec(f"{OWN}:EveryKind", 1, 5, (3, 8, 8))

Built = tuple[Artifacts, nn.Module]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModelSpec], Built]:
    """Artifacts without a comparison, and their module; each made once."""
    made: dict[str, Built] = {}

    def build(spec: ModelSpec) -> Built:
        if spec.model not in made:
            folder = tmp_path_factory.mktemp("general") / "artifacts"
            method = make_method("sparsyfed", sparsity=SPARSITY)
            made[spec.model] = build_artifacts(spec, method, folder, seed=0, check=lambda artifacts, model: model)
        return made[spec.model]

    return build


@pytest.mark.parametrize("spec", [SIGNALS, VECTORS, IMAGES, MIXED], ids=lambda spec: spec.model.rpartition("/")[2])
@pytest.mark.parametrize("batch", [16, 5])
@pytest.mark.parametrize("sparsity", [0.0, SPARSITY])
def test_a_step_is_torchs(built: Callable[[ModelSpec], Built], spec: ModelSpec, batch: int, sparsity: float) -> None:
    artifacts, model = built(spec)
    start = prune_global(_away_from_symmetry(artifacts), artifacts.manifest.prunable, sparsity)
    errors = [_apart(artifacts, model, start, _batch(spec, batch, seed)) for seed in range(8)]
    # A value on the edge of a ReLU or of a pruning threshold may fall on either side; most batches have none.
    loss, gradient = np.median(errors, axis=0)
    assert loss <= TOLERANCE
    assert gradient <= TOLERANCE


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_rarer_modules_train_as_torch_does(tmp_path: Path) -> None:
    _, parity = export_model(RARE, make_method("sparsyfed", sparsity=SPARSITY), tmp_path / "out")
    # A norm behind another cancels shifts: what is left of their gradients is rounding, in torch as well.
    assert parity.loss <= TOLERANCE
    assert parity.plain <= 1e-3


def test_layers_give_the_same_step_over_non_zeros_and_dense(built: Callable[[ModelSpec], Built]) -> None:
    artifacts, _ = built(IMAGES)
    start = prune_global(_away_from_symmetry(artifacts), artifacts.manifest.prunable, 0.3)
    session = SparseSession(artifacts)
    after = []
    for is_sparse in (True, False):
        session.load(start)
        feeds = session.feeds(*_batch(IMAGES, 5, 0), 1.0)
        feeds |= {name: np.array([is_sparse]) for name in feeds if name.endswith(".sparse")}
        after.append(dict(zip(session._outputs, session._step.run(session._outputs, feeds), strict=True)))
    assert max(_relative(after[0][name], after[1][name]) for name in after[0]) <= TOLERANCE


def test_dropout_depends_on_the_seed_of_the_step_alone(built: Callable[[ModelSpec], Built]) -> None:
    artifacts, _ = built(MIXED)
    session, start = SparseSession(artifacts), read_initial_state(artifacts)
    losses = []
    for seed in (1, 1, 2):
        session.load(start)
        losses.append(session.train_step(*_batch(MIXED, 16, 0), 1.0, seed=seed))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "clip_norm": 1.0},
        {"label_smoothing": 0.1},
        {"mixup": 0.2},
        {"mixup": 0.2, "label_smoothing": 0.1, "optimizer": "momentum"},
        {"label_shift": 1.0},
        {"label_shift": 0.5, "mixup": 0.2},
    ],
    ids=str,
)
def test_optimizers_smoothing_and_mixtures_are_torchs(options: dict[str, object], tmp_path: Path) -> None:
    method, training = make_method("sparsyfed", sparsity=SPARSITY), make_training(**options)
    artifacts, parity = export_model(SIGNALS, method, tmp_path / "out", training=training)
    assert parity.plain <= 3e-5
    inputs = {each.name for each in onnx.load(artifacts.path("sparse_step")).graph.input}
    assert ("labels_mixed" in inputs) == ("mixup" in options)
    assert ("label_shift" in inputs) == ("label_shift" in options)


def test_a_warm_up_keeps_the_inputs_of_sparse_and_dense_layers_whole(tmp_path: Path) -> None:
    methods = {
        "warming": make_method("sparsyfed", sparsity=SPARSITY, activation_warmup=2),
        "never": make_method("sparsyfed-no-act", sparsity=SPARSITY),
        "always": make_method("sparsyfed", sparsity=SPARSITY),
    }
    made = {
        name: build_artifacts(SIGNALS, method, tmp_path / name, seed=0, check=lambda artifacts, model: None)[0]
        for name, method in methods.items()
    }
    artifacts = made["warming"]
    start = prune_global(_away_from_symmetry(artifacts), artifacts.manifest.prunable, SPARSITY)
    x, y = _batch(SIGNALS, 16, 0)
    for round_number, alike in ((2, "never"), (3, "always")):
        states = []
        for each, told in ((artifacts, inputs_of(artifacts.manifest, y, round_number)), (made[alike], NO_INPUTS)):
            session = SparseSession(each)
            session.load(start)
            session.train_step(x, y, 0.1, seed=1, inputs=told)
            states.append(session.state())
        assert all(np.array_equal(states[0][name], states[1][name]) for name in start)


def test_a_regression_mixes_before_the_step(tmp_path: Path) -> None:
    spec = replace(SIGNALS, task="regression", classes=2)
    artifacts, parity = export_model(
        spec, make_method("sparsyfed", sparsity=SPARSITY), tmp_path / "out", training=make_training(mixup=0.2)
    )
    assert parity.plain <= 3e-5
    assert "mix" not in {each.name for each in onnx.load(artifacts.path("sparse_step")).graph.input}


@pytest.mark.parametrize("name", ["dense", "topk", "zerofl", "flash", "spectral", "auto-beta"])
def test_every_kind_of_method_trains_a_general_network(name: str, tmp_path: Path) -> None:
    method = make_method(name, **({} if name == "dense" else {"sparsity": 0.8}))
    _, parity = export_model(SIGNALS, method, tmp_path / "out")
    assert parity.plain <= 3e-5


def test_the_delivered_model_is_a_plain_graph_and_answers_as_torch_does(
    built: Callable[[ModelSpec], Built], tmp_path: Path
) -> None:
    import onnxruntime

    artifacts, model = built(MIXED)
    state = read_initial_state(artifacts)
    write_models(tmp_path, state, artifacts, Origin(run="r", round=1, accuracy=0.5, sparsity=0.0))
    graph = onnx.load(tmp_path / "model_float.onnx")
    assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
    x = np.random.default_rng(0).random((3, *MIXED.input_shape), dtype=np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "model_float.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {session.get_inputs()[0].name: x})
    theta = {
        name: np.sign(w) * np.abs(w) ** 1.25 if name in artifacts.manifest.prunable else w for name, w in state.items()
    }
    model.load_state_dict({name: torch.from_numpy(value) for name, value in theta.items()}, strict=False)
    with torch.no_grad():
        wanted = model.eval()(torch.from_numpy(2 * x - 1)).numpy()
    assert _relative(logits, wanted) <= TOLERANCE


def test_no_graph_names_a_file_of_the_machine_that_exported_it(built: Callable[[ModelSpec], Built]) -> None:
    artifacts, _ = built(MIXED)
    graphs = sorted(artifacts.directory.glob("*.onnx"))
    assert len(graphs) > 3
    for graph in graphs:
        content = graph.read_bytes()
        assert not [mark for mark in (b".py", b"stack_trace") if mark in content], graph.name


def test_frozen_layers_keep_their_tensors_and_get_no_gradient(tmp_path: Path) -> None:
    method = make_method("sparsyfed", sparsity=SPARSITY)
    artifacts, parity = export_model(SIGNALS, method, tmp_path / "out", choices=ModelChoices(train="last:1"))
    manifest = artifacts.manifest
    assert parity.plain <= 3e-5
    assert [parameter.name for parameter in manifest.parameters if parameter.trainable] == ["head.weight", "head.bias"]
    step = onnx.load(artifacts.path("sparse_step"))
    assert {output.name for output in step.graph.output} == {"loss", "head.weight.values.new", "head.bias.new"}
    session, start = SparseSession(artifacts), read_initial_state(artifacts)
    session.load(start)
    session.train_step(*_batch(SIGNALS, 16, 0), 0.1)
    changed = [name for name, value in session.state().items() if not np.array_equal(value, start[name])]
    assert changed == ["head.weight", "head.bias"]


def test_a_users_resnet_takes_the_fused_layout(tmp_path: Path) -> None:
    spec = ModelSpec(f"{OWN}:SmallResNet", 1, 5, (3, 16, 16))
    artifacts, parity = export_model(spec, make_method("sparsyfed", sparsity=SPARSITY), tmp_path / "out")
    nodes = {node.op_type for node in onnx.load(artifacts.path("sparse_step")).graph.node}
    assert "SparseConv" in nodes
    assert "If" not in nodes
    assert parity.plain <= 3e-5


def _away_from_symmetry(artifacts: Artifacts) -> State:
    """The initial state with other biases and scales: with the usual ones, many gradients cancel to rounding noise."""
    rng = np.random.default_rng(5)
    state = read_initial_state(artifacts)
    for parameter in artifacts.manifest.parameters:
        if not parameter.prunable:
            noise = rng.uniform(0.5, 1.5, parameter.shape).astype(np.float32)
            state[parameter.name] = noise if parameter.name.endswith(("weight", "var")) else noise - 1
    return state


def _batch(spec: ModelSpec, size: int, seed: int) -> tuple[FloatArray, Labels]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, *spec.input_shape), dtype=np.float32)
    if spec.task == "regression":
        return x, rng.standard_normal((size, spec.outputs), dtype=np.float32)
    return x, rng.integers(0, spec.classes, size)


def _apart(artifacts: Artifacts, model: nn.Module, start: State, batch: tuple[FloatArray, Labels]) -> list[float]:
    """How far a step of the graph and one of torch are apart: the loss, and all gradients together."""
    session = SparseSession(artifacts)
    session.load(start)
    loss = session.train_step(*batch, 1.0)
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in start.items()}, strict=False)
    manifest = artifacts.manifest
    x, y = (torch.from_numpy(each) for each in batch)
    theirs = reference_step(model, manifest.method, x, y, learning_rate=1.0, prunable=manifest.prunable)
    after = session.state()
    ours = np.concatenate([(start[name] - after[name]).ravel() for name in theirs.gradients])
    wanted = np.concatenate([gradient.ravel() for gradient in theirs.gradients.values()])
    return [abs(loss - theirs.loss) / abs(theirs.loss), _relative(ours, wanted)]


def _relative(ours: FloatArray, theirs: FloatArray) -> float:
    wide = theirs.astype(np.float64)
    return float(np.linalg.norm(ours - wide)) / max(float(np.linalg.norm(wide)), 1e-30)
