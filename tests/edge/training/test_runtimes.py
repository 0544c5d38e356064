"""The same training in both runtimes: by the API of onnxruntime-training, and as a graph that any onnxruntime runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from fixtures.training_api import NEEDS_TRAINING_API
from numpy.typing import NDArray

from sparsyedge.edge.errors import ArtifactError, ConfigError, TrainingError
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import STOCK_ROLES, TRAINING_ROLES, Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.native import OP_DOMAIN
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training import onnx_runtime
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.session import Session, choose_kind
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.training.sparse_session import SparseSession

Export = Callable[..., Artifacts]

STEPS = 20
# If a value falls on the other side of a threshold (ReLU, pruning), one flip moves a small gradient by 1e-2 and says
# nothing about the graph (export/agreement.py). We replace such batches, but only a few.
MAX_BATCHES = 26
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-3
# Large, so the values after a step reveal its gradients.
RATE = 1.0
BATCH = (np.zeros((6, 3, 16, 16), np.float32), np.zeros(6, np.int64))


def differences(ours: Session, theirs: Session, state: State, rng: np.random.Generator) -> tuple[float, float]:
    """Relative differences in the loss and in the worst tensor's change, after one step from the same state."""
    x = rng.standard_normal((6, 3, 16, 16), dtype=np.float32)
    y = rng.integers(0, 5, 6)
    losses, changes = [], []
    for session in (ours, theirs):
        session.load(state)
        losses.append(session.train_step(x, y, RATE))
        changes.append({name: value - state[name] for name, value in session.state().items()})
    worst = max(_relative_l2(changes[0][name], changes[1][name]) for name in state)
    return abs(losses[0] - losses[1]) / abs(losses[1]), worst


def _relative_l2(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - wanted)) / max(float(np.linalg.norm(wanted)), 1e-12)


@NEEDS_TRAINING_API
@pytest.mark.parametrize("sparsity", [0.0, 0.9], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sparsyfed", {}),
        ("sparsyfed", {"beta": 1.0}),
        ("topk", {}),
        ("fixed-mask", {}),
        ("zerofl", {"sparsity": 0.9}),
        ("spectral", {}),
    ],
    ids=["sparsyfed", "sparsyfed whose zeros grow back", "topk", "fixed-mask", "zerofl", "spectral"],
)
def test_plain_graph_takes_the_steps_of_the_training_api(
    name: str, options: dict[str, float], sparsity: float, export_method: Export
) -> None:
    artifacts = export_method(name, **options)
    plain, api = SparseSession(artifacts), DenseSession(artifacts)
    start = read_initial_state(artifacts)
    state = prune_global(start, artifacts.manifest.prunable, sparsity)
    rng = np.random.default_rng(7)
    agreeing, losses = 0, []
    for _ in range(MAX_BATCHES):
        loss, gradient = differences(plain, api, state, rng)
        losses.append(loss)
        agreeing += gradient <= GRADIENT_TOLERANCE
        if agreeing == STEPS:
            break
        # Teacher-forced: both sides go on from a part of the way that the training API went.
        state = {key: np.float32(0.9) * start[key] + np.float32(0.1) * value for key, value in api.state().items()}
        state = prune_global(state, artifacts.manifest.prunable, sparsity)
    assert max(losses) <= LOSS_TOLERANCE
    assert agreeing == STEPS


@pytest.mark.parametrize("name", ["sparsyfed", "topk", "dense", "zerofl", "spectral"])
def test_graphs_of_a_stock_device_have_no_training_only_node(name: str, export_method: Export) -> None:
    artifacts = export_method(name)
    for role in ("sparse_plan", "sparse_step"):
        graph = onnx.load(artifacts.path(role))
        assert {node.domain for node in graph.graph.node} <= {OP_DOMAIN, ""}
        assert {node.op_type for node in graph.graph.node if not node.domain} <= {"Shape"}


@NEEDS_TRAINING_API
def test_checkpoint_is_read_without_the_training_api_bit_for_bit(tiny: Artifacts) -> None:
    assert model_id(read_initial_state(tiny)) == model_id(DenseSession(tiny).state()) == tiny.manifest.initial_model


@NEEDS_TRAINING_API
def test_evaluation_by_the_plain_graph_is_that_of_the_training_api(tiny: Artifacts) -> None:
    api, plain = DenseSession(tiny), EvalSession(tiny)
    state = {name: value + np.float32(0.1) for name, value in api.state().items()}
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((9, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, 9)
    answers = []
    for session in (api, plain):
        session.load(state)
        answers.append(session.evaluate(x, y))
    assert answers[0][0] == pytest.approx(answers[1][0], rel=1e-6)
    np.testing.assert_allclose(answers[0][1], answers[1][1], rtol=1e-5, atol=1e-6)
    with pytest.raises(TrainingError, match=r"evaluation of a batch of shape \(9, 1, 16, 16\) failed"):
        plain.evaluate(x[:, :1], y)


@NEEDS_TRAINING_API
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda content: b"", "not a checkpoint"),
        (lambda content: content[:4] + b"NONE" + content[8:], "not a checkpoint"),
        (lambda content: content[: len(content) // 2], "cannot be read as a checkpoint|has no tensor"),
        (lambda content: b"\xff\xff\xff\x7f" + content[4:], "cannot be read as a checkpoint"),
        (lambda content: content[:64] + bytes(len(content) - 64), "cannot be read as a checkpoint|has no tensor"),
    ],
    ids=["empty", "another file", "cut", "pointing nowhere", "zeros"],
)
def test_damaged_checkpoint_is_refused_in_a_sentence(
    damage: Callable[[bytes], bytes], complaint: str, tiny: Artifacts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    name = tiny.manifest.files["checkpoint"].name
    (folder / name).write_bytes(damage((tiny.directory / name).read_bytes()))
    with pytest.raises(ArtifactError, match=complaint):
        read_initial_state(Artifacts(folder, tiny.manifest))


@NEEDS_TRAINING_API
def test_checkpoint_of_another_model_is_refused(tiny: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("other")
    file = tiny.manifest.files["checkpoint"]
    content = bytearray((tiny.directory / file.name).read_bytes())
    weights = read_initial_state(tiny)["layer1.0.conv1.weight"].tobytes()
    at = bytes(content).index(weights)
    content[at] ^= 1
    (folder / file.name).write_bytes(content)
    with pytest.raises(ArtifactError, match=r"holds model .*, the manifest says"):
        read_initial_state(Artifacts(folder, tiny.manifest))


def test_runtime_is_what_is_installed_unless_one_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runtime, "_has_training_api", lambda: True)
    assert onnx_runtime.pick_runtime() == "training"
    assert onnx_runtime.pick_runtime("stock") == "stock"
    monkeypatch.setattr(onnx_runtime, "_has_training_api", lambda: False)
    assert onnx_runtime.pick_runtime() == "stock"
    with pytest.raises(ConfigError, match=r"--runtime training needs onnxruntime-training 1\.19\.2"):
        onnx_runtime.pick_runtime("training")


def test_device_fetches_only_the_files_of_its_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_runtime, "_has_training_api", lambda: True)
    assert SessionHolder(runtime="stock").roles == STOCK_ROLES
    assert SessionHolder(runtime="training").roles == TRAINING_ROLES
    assert "training" not in STOCK_ROLES


def test_stock_device_trains_every_round_with_the_plain_graph(tiny: Artifacts) -> None:
    bench = SessionHolder(runtime="stock")
    bench.put(tiny, "0" * 64)
    first = bench.session(None, round_number=1)
    assert isinstance(first, SparseSession)
    assert model_id(first.state()) == tiny.manifest.initial_model
    pruned = prune_global(first.state(), tiny.manifest.prunable, 0.9)
    assert bench.session(pruned, round_number=2) is first
    assert choose_kind(tiny.manifest, pruned, "stock") == "sparse"


def test_layers_of_which_all_weights_are_trained_are_planned_once(export_method: Export) -> None:
    session = SparseSession(artifacts := export_method("zerofl"))
    start = read_initial_state(artifacts)
    session.load(start)
    plans = {id(array) for name, array in session.feeds(*BATCH, RATE).items() if name.endswith(".plan")}
    session.load(pruned := prune_global(start, artifacts.manifest.prunable, 0.9))
    assert plans == {id(array) for name, array in session.feeds(*BATCH, RATE).items() if name.endswith(".plan")}
    assert model_id(session.state()) == model_id(pruned)
