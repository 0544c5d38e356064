"""Updates on disk."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.coordinator.model.update_files import UpdateFiles


def test_updates_go_with_their_round_and_all_before_it(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    for round_number in (1, 2, 3):
        files.begin(round_number, end=0)
        files.save(b"of round %d" % round_number)
    files.drop(2)
    assert files.load(3, position=0, size=10) == b"of round 3"
    assert [path.name for path in (tmp_path / "updates").iterdir()] == ["3.log"]
    files.close()


def test_every_update_is_found_where_it_was_saved(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    files.begin(1, end=0)
    frames = [b"first", b"", b"the third"]
    positions = [files.save(frame) for frame in frames]
    files.sync()
    assert [files.load(1, position=at, size=len(frame)) for at, frame in zip(positions, frames, strict=True)] == frames
    files.close()


def test_the_next_process_writes_over_what_was_never_recorded(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    files.begin(1, end=0)
    files.save(b"recorded")
    files.save(b"cut sho")
    files.close()
    files.begin(1, end=len(b"recorded"))
    assert files.save(b"again") == len(b"recorded")
    assert files.path(1).read_bytes() == b"recordedagain"
    files.close()


def test_a_file_that_lost_its_end_gives_less_than_was_saved(tmp_path: Path) -> None:
    files = UpdateFiles(tmp_path)
    files.begin(1, end=0)
    position = files.save(b"a whole frame")
    files.path(1).write_bytes(b"a who")
    assert files.load(1, position=position, size=13) == b"a who"
    files.close()
