import hashlib
import os
from pathlib import Path

import pytest

from sparsyedge.edge.storage import sha256_file, write_atomically


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
