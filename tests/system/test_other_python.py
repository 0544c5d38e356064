"""Two Pythons: what one exports, the other trains, to the same bits in the plain graph."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from fixtures.artifacts import TINY, ExportOnce
from fixtures.training_api import first_session

from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.sparse_session import SparseSession

pytestmark = pytest.mark.heavy

LIMIT_S = 300.0
METHOD = make_method("sparsyfed", sparsity=0.9)

TRAIN = """
import sys
from pathlib import Path
import numpy as np
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.training.session_holder import SessionHolder

artifacts = Artifacts.load(Path(sys.argv[1]))
batches = np.load(sys.argv[2])
holder = SessionHolder(runtime="stock")
holder.put(artifacts, "0" * 64)
start = None if sys.argv[3] == "dense" else {k: v for k, v in np.load(sys.argv[3]).items()}
session = holder.session(start, round_number=1)
for x, y in zip(batches["x"], batches["y"]):
    session.train_step(x, y, 0.1)
np.savez(sys.argv[4], **session.state())
"""
EXPORT = """
import sys
from pathlib import Path
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.model_spec import ModelSpec

spec = ModelSpec("resnet18", width=4, classes=5, input_shape=(3, 16, 16))
export_model(spec, make_method("sparsyfed", sparsity=0.9), Path(sys.argv[1]), seed=3)
"""


@pytest.fixture(scope="module")
def other_python() -> Path:
    """An interpreter with sparsyedge on it; `make test-python` makes one and runs these tests."""
    python = Path(os.environ.get("SPARSYEDGE_OTHER_PYTHON", "nowhere"))
    if not python.is_file():
        pytest.skip("no other Python is named in $SPARSYEDGE_OTHER_PYTHON; run `make test-python`")
    return python


def run(python: Path, program: str, *arguments: Path | str) -> None:
    # From a folder of its own: in the checkout, `edge` would be found beside the installed package.
    done = subprocess.run(
        [str(python), "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=Path(str(arguments[-1])).parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def exported_there(other_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    check = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([str(other_python), "-c", check], timeout=LIMIT_S).returncode:
        pytest.skip(f"needs torch, which {other_python} does not have")
    folder = tmp_path_factory.mktemp("there") / "artifacts"
    run(other_python, EXPORT, folder)
    return Artifacts.load(folder)


@pytest.fixture(scope="module")
def exported_here(export_once: ExportOnce) -> Artifacts:
    return export_once(TINY, METHOD, 3)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("batches") / "batches.npz"
    np.savez(path, x=rng.standard_normal((5, 6, 3, 16, 16), dtype=np.float32), y=rng.integers(0, 5, (5, 6)))
    return path


def train(session: Session, start: State, batches: Path) -> State:
    data = np.load(batches)
    session.load(start)
    for x, y in zip(data["x"], data["y"], strict=True):
        session.train_step(x, y, 0.1)
    return session.state()


def train_there(python: Path, artifacts: Artifacts, start: State | None, batches: Path, folder: Path) -> State:
    given = folder / "start.npz"
    if start is not None:
        np.savez(given, allow_pickle=False, **start)
    run(python, TRAIN, artifacts.directory, batches, given if start is not None else "dense", folder / "trained.npz")
    return dict(np.load(folder / "trained.npz").items())


def pruned(artifacts: Artifacts) -> State:
    return prune_global(read_initial_state(artifacts), artifacts.manifest.prunable, 0.9)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_what_is_exported_here_trains_there_to_the_same_bits(
    sparse: bool, exported_here: Artifacts, other_python: Path, batches: Path, tmp_path: Path
) -> None:
    start = pruned(exported_here) if sparse else None
    theirs = train_there(other_python, exported_here, start, batches, tmp_path)
    ours = train(SparseSession(exported_here), start or read_initial_state(exported_here), batches)
    assert model_id(ours) == model_id(theirs)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_what_is_exported_there_trains_here_to_the_same_bits(
    sparse: bool, exported_there: Artifacts, other_python: Path, batches: Path, tmp_path: Path
) -> None:
    start = pruned(exported_there) if sparse else read_initial_state(exported_there)
    theirs = train_there(other_python, exported_there, start if sparse else None, batches, tmp_path)
    assert model_id(train(first_session(exported_there), start, batches)) == model_id(theirs)


def test_both_export_the_same_model_and_the_same_plain_graph(
    exported_here: Artifacts, exported_there: Artifacts
) -> None:
    here, there = exported_here.manifest, exported_there.manifest
    assert here.initial_model == there.initial_model
    for role in ("inference", "sparse_plan", "sparse_step"):
        assert here.files[role] == there.files[role]
