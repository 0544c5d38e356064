import hashlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from sparsyedge.edge.storage import make_private_folder, private_files, remove_leftovers, sha256_file, write_atomically


def test_content_is_written_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"


def test_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    write_atomically(path, b"old")

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file.bin"]


def test_hash_of_a_file_is_that_of_its_content(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"x" * 1_000_000)
    assert sha256_file(path) == hashlib.sha256(b"x" * 1_000_000).hexdigest()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_among_private_files_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_files():
            write_atomically(tmp_path / "folder" / "update.frame", b"content")
            with sqlite3.connect(tmp_path / "folder" / "store.sqlite") as store:
                store.execute("PRAGMA journal_mode = WAL")
                store.execute("CREATE TABLE t (x)")
                made = list((tmp_path / "folder").iterdir())
            store.close()
        write_atomically(tmp_path / "result.json", b"{}")
    finally:
        os.umask(before)
    assert mode(tmp_path / "folder") == 0o700
    assert len(made) > 2
    assert {mode(path) for path in (tmp_path / "folder").iterdir()} == {0o600}
    assert mode(tmp_path / "result.json") == 0o644


def test_a_private_folder_that_is_there_keeps_the_mode_its_owner_gave_it(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "runs" / "new")
    assert mode(tmp_path / "runs" / "new") == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    make_private_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o750


def test_what_killed_writers_left_is_removed_files_and_folders_alike(tmp_path: Path) -> None:
    (tmp_path / "model" / ".two.part").mkdir(parents=True)
    (tmp_path / "model" / ".two.part" / ".model.onnx.x.part").write_bytes(b"half")
    (tmp_path / ".job.y.part").write_bytes(b"half")
    (tmp_path / "model" / "one").write_bytes(b"whole")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "one"]
