"""Updates on disk."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.coordinator.model.update_files import UpdateFiles


def test_updates_go_with_their_round_and_all_before_it(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    for round_number in (1, 2, 3):
        files.save(round_number, "d1", b"of round %d" % round_number)
    files.drop(2)
    assert files.load(3, "d1") == b"of round 3"
    assert [path.name for path in (tmp_path / "updates").iterdir()] == ["3"]
