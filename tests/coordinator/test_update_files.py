"""Updates on disk."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.coordinator.update_files import UpdateFiles


def test_updates_go_with_their_round(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    files.save(1, "d1", b"one")
    files.save(2, "d1", b"two")
    files.drop(1)
    files.drop(9)
    assert files.load(2, "d1") == b"two"
    assert [path.name for path in (tmp_path / "updates").iterdir()] == ["2"]
