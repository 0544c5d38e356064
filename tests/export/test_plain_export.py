"""An export without the files of onnxruntime-training, as every Python but 3.11 on x86-64 writes it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.artifacts import TINY
from fixtures.training_api import NEEDS_TRAINING_API
from onnx import ModelProto

from sparsyedge.edge.errors import ArtifactError, ConfigError
from sparsyedge.edge.model.artifacts import API_ROLES, Artifacts
from sparsyedge.edge.model.checkpoint import encode_checkpoint, read_initial_state
from sparsyedge.edge.model.methods import METHODS, Method, make_method
from sparsyedge.edge.model.training import Training
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training import onnx_runtime
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.export import build
from sparsyedge.export.agreement import verify
from sparsyedge.export.fused import graphs
from sparsyedge.export.fused.layers import Network
from sparsyedge.export.fused.step import build_sparse_step

pytestmark = pytest.mark.heavy

METHOD = make_method("sparsyfed", sparsity=0.9, beta=1.25)


def export(directory: Path, method: Method = METHOD) -> Artifacts:
    made, _ = build.build_artifacts(TINY, method, directory, seed=3, check=lambda *made: None, for_training_api=False)
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return export(tmp_path_factory.mktemp("plain") / "artifacts")


def trained(session: SparseSession, start: State) -> State:
    rng = np.random.default_rng(1)
    session.load(start)
    for _ in range(3):
        session.train_step(rng.standard_normal((6, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, 6), 0.1)
    return session.state()


def test_it_has_all_files_but_those_of_the_training_api(plain: Artifacts) -> None:
    assert set(plain.manifest.files) == {"checkpoint", "inference", "skeleton", "sparse_plan", "sparse_step"}
    assert not plain.manifest.has_api_files
    # Earlier releases insist on the files that are not there; the version tells them to upgrade.
    assert plain.manifest.version == 6


@NEEDS_TRAINING_API
def test_with_the_training_api_earlier_releases_read_the_manifest(tiny: Artifacts) -> None:
    assert tiny.manifest.version == 5
    assert set(API_ROLES) <= set(tiny.manifest.files)


def test_its_checkpoint_is_the_initial_model_bit_for_bit(plain: Artifacts, tiny: Artifacts) -> None:
    assert model_id(read_initial_state(plain)) == plain.manifest.initial_model == tiny.manifest.initial_model


def test_its_plain_graph_is_that_of_every_other_export(plain: Artifacts, tiny: Artifacts) -> None:
    start = read_initial_state(plain)
    ids = {model_id(trained(SparseSession(artifacts), start)) for artifacts in (plain, tiny)}
    assert len(ids) == 1


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:200] + content[201:]])
def test_a_damaged_checkpoint_is_refused_in_a_sentence(damage: object, plain: Artifacts, tmp_path: Path) -> None:
    name = plain.manifest.files["checkpoint"].name
    (tmp_path / name).write_bytes(damage((plain.directory / name).read_bytes()))  # type: ignore[operator]
    with pytest.raises(ArtifactError, match="cannot be read as a checkpoint"):
        read_initial_state(Artifacts(tmp_path, plain.manifest))


def test_a_checkpoint_of_another_model_is_refused(plain: Artifacts, tmp_path: Path) -> None:
    state = read_initial_state(plain)
    state["fc.bias"] = state["fc.bias"] + np.float32(1)
    (tmp_path / plain.manifest.files["checkpoint"].name).write_bytes(
        encode_checkpoint(state, prunable=plain.manifest.prunable)
    )
    with pytest.raises(ArtifactError, match=r"holds model .*, the manifest says"):
        read_initial_state(Artifacts(tmp_path, plain.manifest))


@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_every_method_agrees_with_torch(name: str, tmp_path: Path) -> None:
    method = make_method(name, **({} if name == "dense" else {"sparsity": 0.9}))
    parity = verify(export(tmp_path / "out", method))
    assert (parity.steps, parity.by_api) == (3, False)
    assert max(parity.loss, parity.updated, parity.plain) <= 3e-5
    assert parity.gradient <= 1e-4


def test_one_that_decays_weights_otherwise_is_refused(plain: Artifacts) -> None:
    claimed = msgspec.structs.replace(plain.manifest, method=msgspec.structs.replace(METHOD, weight_decay=0.1))
    with pytest.raises(ArtifactError, match=r"agreed with torch .* on 0 of 40 batches.*do not use this export"):
        verify(Artifacts(plain.directory, claimed))


def test_one_that_does_not_prune_activations_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(network: Network, method: Method, training: Training) -> ModelProto:
        return build_sparse_step(network, msgspec.structs.replace(method, prune_activations=False), training)

    monkeypatch.setattr(graphs, "build_sparse_step", wrong)
    with pytest.raises(ArtifactError, match="do not use this export"):
        verify(export(tmp_path / "out"))


def test_a_device_with_the_training_api_trains_its_plain_graph(
    plain: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_runtime, "training_api", "installed")
    holder = SessionHolder()
    holder.put(plain, "0" * 64)
    first = holder.session(None, round_number=1)
    assert isinstance(first, SparseSession)
    assert holder.session(first.state(), round_number=2) is first


def test_a_device_that_must_use_the_training_api_says_why_it_cannot(
    plain: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_runtime, "training_api", "installed")
    with pytest.raises(ConfigError, match=r"--runtime training needs .* exported without it; leave the option out"):
        SessionHolder(runtime="training").put(plain, "0" * 64)


@NEEDS_TRAINING_API
def test_the_training_api_has_nothing_to_open(plain: Artifacts) -> None:
    with pytest.raises(ArtifactError, match=r"exported without onnxruntime-training.*train the plain graph"):
        DenseSession(plain)
