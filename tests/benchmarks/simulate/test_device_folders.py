"""The files of devices that train elsewhere: lent for a turn, and back before anything that relies on them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sparsyedge.benchmarks.simulate.device_folders import DeviceFolders, FileChanges, LentFolder
from sparsyedge.benchmarks.simulate.remote_worker import NodeStore, decode_sent
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import write_atomically

DEVICE = "device-001"
MODEL = "models/00ff.frame"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "devices"


def lend(home: Path, place: Path) -> LentFolder:
    folders = DeviceFolders(home)
    turn = folders.read(DEVICE)
    frames = [folders.shared_model(name, of=DEVICE) for name in turn.models]
    lent = LentFolder(place / DEVICE, artifacts=place / "artifacts")
    lent.fill(turn, frames, known=frozenset(folders.shared_models()))
    return lent


def test_a_device_goes_on_at_another_worker_where_it_stopped(home: Path, tmp_path: Path) -> None:
    first = lend(home, tmp_path / "a")
    assert first.changes() is None
    write_atomically(tmp_path / "a" / DEVICE / "outbox" / "update.outbox", b"update")
    write_atomically(tmp_path / "a" / DEVICE / MODEL, b"frame")
    changes = first.changes()
    assert changes == FileChanges(DEVICE, {"outbox/update.outbox": b"update", MODEL: b"frame"}, [])
    assert first.changes() is None
    # What a worker sends is read as what it was.
    DeviceFolders(home).apply(decode_sent(msgspec.msgpack.encode(changes)))  # type: ignore[arg-type]

    second = lend(home, tmp_path / "b")
    folder = tmp_path / "b" / DEVICE
    assert (folder / "outbox" / "update.outbox").read_bytes() == b"update"
    assert (folder / MODEL).read_bytes() == b"frame"
    (folder / "outbox" / "update.outbox").unlink()
    changes = second.changes()
    assert changes == FileChanges(DEVICE, {}, ["outbox/update.outbox"])
    DeviceFolders(home).apply(changes)
    assert DeviceFolders(home).read(DEVICE).files == {}


def test_a_model_comes_back_once_and_is_on_disk_once(home: Path, tmp_path: Path) -> None:
    DeviceFolders(home).apply(FileChanges("device-000", {MODEL: b"frame"}, []))
    lent = lend(home, tmp_path)
    write_atomically(tmp_path / DEVICE / MODEL, b"frame")
    changes = lent.changes()
    assert changes == FileChanges(DEVICE, {MODEL: None}, [])
    DeviceFolders(home).apply(changes)
    assert (home / "device-000" / MODEL).samefile(home / DEVICE / MODEL)


def test_models_that_another_engine_left_are_lent_too(home: Path, tmp_path: Path) -> None:
    write_atomically(home / DEVICE / MODEL, b"frame")
    lend(home, tmp_path)
    assert (tmp_path / DEVICE / MODEL).read_bytes() == b"frame"


def test_a_worker_that_is_used_again_starts_without_the_last_turns_files(home: Path, tmp_path: Path) -> None:
    lent = lend(home, tmp_path)
    write_atomically(tmp_path / DEVICE / "outbox" / "update.outbox", b"update")
    lent.remove()
    lend(home, tmp_path)
    assert not (tmp_path / DEVICE / "outbox").exists()
    assert (tmp_path / DEVICE / "artifacts").is_symlink()


@pytest.mark.parametrize("name", ["../other", "outbox/../../x", "/etc/passwd", "artifacts/x", "outbox/", "outbox/.x"])
def test_files_that_no_device_has_are_refused(home: Path, name: str) -> None:
    with pytest.raises(RunError, match="which no device has"):
        DeviceFolders(home).apply(FileChanges(DEVICE, {name: b""}, []))
    with pytest.raises(RunError, match="which no device has"):
        DeviceFolders(home).apply(FileChanges(DEVICE, {}, [name]))


def test_a_store_keeps_pieces_in_order_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = NodeStore()
    store.append("shares/x.npy", memoryview(b"ab"))
    store.append("shares/x.npy", memoryview(b"c"))
    assert (Path(store.folder()) / "shares/x.npy").read_bytes() == b"abc"
    store.remove()
    assert not list(tmp_path.iterdir())
