"""Every optimizer beside torch's own, step by step; what a step of any of them must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fixtures.artifacts import TINY
from numpy.typing import NDArray

from sparsyedge.benchmarks.simulate.torch_session import TorchSession
from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.model.training import FEATURE, SHIFT_FEATURE, make_training
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training.job_inputs import inputs_of
from sparsyedge.edge.training.session import Session, choose_kind
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export.agreement import verify
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.command import main
from sparsyedge.export.models import build_model
from sparsyedge.export.training_agreement import verify_training

Export = Callable[..., Artifacts]

SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "momentum"},
    "nesterov": {"optimizer": "momentum", "nesterov": True, "momentum": 0.8},
    "adamw": {"optimizer": "adamw"},
    "other betas": {"optimizer": "adamw", "betas": [0.8, 0.99], "epsilon": 1e-3},
    "clipped sgd": {"clip_norm": 0.5},
    "clipped momentum": {"optimizer": "momentum", "clip_norm": 0.5},
    "clipped adamw": {"optimizer": "adamw", "clip_norm": 0.5},
    "smoothing": {"label_smoothing": 0.1},
    "mixup": {"mixup": 0.2, "label_smoothing": 0.1},
    "label shift": {"label_shift": 1.0},
    "label shift of mixtures": {"label_shift": 0.5, "mixup": 0.2, "optimizer": "momentum"},
}


def draw(seed: int, size: int = 4) -> Callable[[], tuple[NDArray[np.float32], NDArray[np.int64]]]:
    rng = np.random.default_rng(seed)
    return lambda: (rng.standard_normal((size, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, size))


def start_of(artifacts: Artifacts, sparsity: float = 0.9) -> State:
    state = dict(read_initial_state(artifacts))
    return prune_global(state, artifacts.manifest.prunable, sparsity) if sparsity else state


def steps(session: Session, count: int, *, seed: int = 7, rate: float = 0.01) -> None:
    batch = draw(seed)
    for _ in range(count):
        session.train_step(*batch(), rate)


@pytest.mark.parametrize("sparsity", [0.0, 0.9])
@pytest.mark.parametrize("name", SETTINGS)
def test_five_teacher_forced_steps_agree_with_torch(name: str, sparsity: float, export_training: Export) -> None:
    artifacts = export_training(**SETTINGS[name])
    manifest = artifacts.manifest
    model = build_model(TINY, beta=manifest.method.beta, seed=manifest.seed)
    rate = 0.01 if manifest.training.optimizer == "adamw" else 0.5
    start = start_of(artifacts, sparsity)
    assert verify_training(SparseSession(artifacts), model, manifest, start, draw(0), learning_rate=rate) <= 3e-5


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("spectral", "adamw"),
        ("auto-beta", "momentum"),
        ("fixed-mask", "adamw"),
        ("topk", "momentum"),
        ("zerofl", "adamw"),
        ("dense", "momentum"),
    ],
)
def test_so_do_they_with_every_kind_of_method(method: str, optimizer: str, export_training: Export) -> None:
    artifacts = export_training(method, optimizer=optimizer, clip_norm=1.0)
    manifest = artifacts.manifest
    model = build_model(TINY, beta=manifest.method.beta, seed=manifest.seed)
    session, start = SparseSession(artifacts), start_of(artifacts)
    assert verify_training(session, model, manifest, start, draw(0), learning_rate=0.01) <= 3e-5


def test_a_shift_of_zero_changes_no_bit_of_a_step_and_no_shift_reaches_inference(export_training: Export) -> None:
    shifting, plain = export_training(label_shift=1.0), export_training()
    assert shifting.manifest.files["inference"] == plain.manifest.files["inference"]
    x, _ = draw(0, size=10)()
    even, skewed = np.arange(10) % 5, np.array([0] * 9 + [1])
    states, losses = [], []
    for artifacts, labels in ((plain, even), (shifting, even), (shifting, skewed)):
        session = SparseSession(artifacts)
        session.load(start_of(artifacts))
        losses.append(session.train_step(x, even, 0.1, inputs=inputs_of(artifacts.manifest, labels, 1)))
        states.append(session.state())
    assert losses[0] == losses[1] != losses[2]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert not np.array_equal(states[1]["fc.bias"], states[2]["fc.bias"])


def test_a_device_with_the_training_api_takes_shifted_steps_in_the_plain_graph(export_training: Export) -> None:
    artifacts = export_training(label_shift=1.0)
    assert artifacts.manifest.needs == (FEATURE, SHIFT_FEATURE)
    holder = SessionHolder()
    holder.put(artifacts, "0" * 64)
    assert holder.session(None, round_number=1).kind == "sparse"


@pytest.mark.heavy
def test_an_export_is_checked_with_its_optimizer(tmp_path: Path) -> None:
    training = make_training(optimizer="adamw", clip_norm=1.0)
    artifacts, parity = export_model(TINY, make_method("sparsyfed"), tmp_path / "out", training=training)
    assert 0 < parity.plain <= 3e-5
    assert (artifacts.manifest.training, artifacts.manifest.needs) == (training, (FEATURE,))


def test_a_graph_with_another_momentum_than_it_says_is_refused(export_training: Export, tmp_path: Path) -> None:
    said, done = export_training(optimizer="momentum"), export_training(optimizer="momentum", momentum=0.8)
    for file in said.manifest.files.values():
        (tmp_path / file.name).write_bytes((said.directory / file.name).read_bytes())
    step = said.manifest.files["sparse_step"].name
    (tmp_path / step).write_bytes((done.directory / step).read_bytes())
    with pytest.raises(ArtifactError, match=r"agreed with torch's momentum to 3e-05 on 1 of"):
        verify(Artifacts(tmp_path, said.manifest))


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("sparsyfed", "momentum"), ("sparsyfed", "adamw"), ("spectral", "momentum"), ("fixed-mask", "adamw")],
)
def test_zeros_stay_exactly_zero_and_have_no_memory(method: str, optimizer: str, export_training: Export) -> None:
    artifacts = export_training(method, optimizer=optimizer)
    start = start_of(artifacts)
    session = SparseSession(artifacts)
    session.load(start)
    steps(session, 4)
    after, memory = session.state(), session.optimizer_state()
    for name in artifacts.manifest.prunable:
        assert not after[name][start[name] == 0].any()
        for suffix in artifacts.manifest.training.state_suffixes:
            assert not memory[f"{name}{suffix}"][start[name] == 0].any()
    assert any(value.any() for value in memory.values())


def test_memory_exists_for_the_non_zeros_only(export_training: Export) -> None:
    artifacts = export_training(optimizer="adamw")
    session = SparseSession(artifacts)
    session.load(start_of(artifacts))
    x, y = draw(0)()
    feeds = session.feeds(x, y, 0.1)
    for name in artifacts.manifest.prunable:
        assert feeds[f"{name}.values.first_moment"].size == feeds[f"{name}.values"].size
        assert feeds[f"{name}.values"].size < np.prod(artifacts.manifest.shapes[name])


def test_plain_sgd_leaves_its_old_ops_and_inputs(export_training: Export) -> None:
    graph = onnx.load(export_training().path("sparse_step")).graph
    ops = {node.op_type for node in graph.node}
    assert {"PowerPropStep", "DecayStep", "SoftmaxLoss"} <= ops
    assert not ops & {"MomentumStep", "AdamWStep", "GradientNorm", "ClipScale", "Mul", "SoftmaxLossMixed"}
    assert "smoothing" not in {a.name for node in graph.node for a in node.attribute}


@pytest.mark.parametrize("name", ["momentum", "adamw", "clipped sgd", "smoothing", "mixup"])
def test_devices_train_everything_but_plain_sgd_by_the_plain_graph(name: str, export_training: Export) -> None:
    artifacts = export_training(**SETTINGS[name])
    assert choose_kind(artifacts.manifest, read_initial_state(artifacts), "training") == "sparse"
    assert not artifacts.manifest.has_api_files
    holder = SessionHolder()
    holder.put(artifacts, "hash")
    session = holder.session(None, round_number=1)
    assert session.kind == "sparse"
    assert model_id(session.state()) == artifacts.manifest.initial_model


def test_a_loaded_model_starts_with_an_optimizer_that_knows_nothing(export_training: Export) -> None:
    artifacts = export_training(optimizer="adamw")
    session, start = SparseSession(artifacts), start_of(artifacts)
    models = []
    for _ in range(2):
        session.load(start)
        assert not any(value.any() for value in session.optimizer_state().values())
        steps(session, 2)
        models.append(model_id(session.state()))
    assert models[0] == models[1]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_memory_follows_the_mask_by_position(optimizer: str, export_training: Export) -> None:
    artifacts = export_training(optimizer=optimizer)
    dense, name = start_of(artifacts, 0.0), "layer1.0.conv1.weight"
    left = np.arange(dense[name].size).reshape(dense[name].shape) % 3
    first, second = (dense | {name: np.where(left == gone, np.float32(0), dense[name])} for gone in (0, 1))
    session = SparseSession(artifacts)
    session.load(first)
    steps(session, 2)
    memory = session.optimizer_state()
    session.load(second)
    session.load_optimizer_state(memory)
    moved = session.optimizer_state()
    for key, value in memory.items():
        expected = value
        if key.startswith(name):
            expected = np.where(left == 1, np.float32(0), value)
            assert not moved[key][left == 0].any()  # new ones start at 0
            assert moved[key][left == 2].any()
        assert np.array_equal(moved[key], expected), key


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_torch_sessions_remember_the_same(optimizer: str, export_training: Export) -> None:
    artifacts = export_training("sparsyfed-no-act", optimizer=optimizer)
    ours, torchs = SparseSession(artifacts), TorchSession(artifacts.manifest)
    for session in (ours, torchs):
        session.load(start_of(artifacts))
        steps(session, 2, rate=0.001)
        memory = session.optimizer_state()
        session.load(session.state())
        session.load_optimizer_state(memory)
        steps(session, 1, seed=8, rate=0.001)
    found, expected = ours.optimizer_state(), torchs.optimizer_state()
    assert found.keys() == expected.keys() == artifacts.manifest.optimizer_shapes.keys()
    for name, value in expected.items():
        assert np.linalg.norm(found[name] - value) <= 1e-2 * np.linalg.norm(value), name


def test_results_do_not_depend_on_the_number_of_threads(export_training: Export) -> None:
    artifacts = export_training(optimizer="adamw", clip_norm=0.5)
    models = set()
    for threads in (1, 3):
        session = SparseSession(artifacts, threads=threads)
        session.load(start_of(artifacts))
        steps(session, 2)
        models.add(model_id(session.state()))
    assert len(models) == 1


@pytest.mark.heavy
def test_the_command_takes_optimizer_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["clip_norm=1.0", "state=keep", "betas=[0.8, 0.99]", "flip=true"]
    given = [word for option in options for word in ("--training-option", option)]
    model = ["--width", "4", "--classes", "5", "--input-shape", "3", "16", "16", "--out", str(tmp_path / "out")]
    assert main(["--optimizer", "adamw", *given, *model]) == 0
    assert "method sparsyfed, optimizer adamw" in capsys.readouterr().out
    expected = make_training(optimizer="adamw", clip_norm=1.0, state="keep", betas=[0.8, 0.99], flip=True)
    assert Artifacts.load(tmp_path / "out").manifest.training == expected
    with pytest.raises(ConfigError, match=r"key `training.epsilon` has value 2: .*; allowed: at least 1e-12"):
        main(["--optimizer", "adamw", "--training-option", "epsilon=2", *model])


def test_augmentation_of_sound_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    spec = type(TINY)("resnet18-7x7", width=4, classes=5, input_shape=(1, 1, 800))
    with pytest.raises(ConfigError, match=r"`training.flip` has value True: it works on images"):
        export_model(spec, make_method("sparsyfed"), tmp_path / "out", training=make_training(flip=True))
    assert not list(tmp_path.iterdir())
