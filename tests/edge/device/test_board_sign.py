from __future__ import annotations

import os
import stat
from pathlib import Path

from sparsyedge.edge.device.board_sign import BoardSign


def test_a_state_is_a_word_and_a_line(tmp_path: Path) -> None:
    sign = BoardSign({"RUNTIME_DIRECTORY": f"{tmp_path}:/run/other"})
    sign.show("trouble", "the broker\nat x is away " + "x" * 500)
    state, sentence, rest = (tmp_path / "status").read_text().split("\n")
    assert (state, rest) == ("trouble", "")
    assert sentence.startswith("the broker at x is away xxx")
    assert len(sentence) == 160


def test_others_can_read_it_whatever_files_the_device_makes_otherwise(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        BoardSign({"RUNTIME_DIRECTORY": str(tmp_path)}).show("waiting", "waiting for a run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "status").stat().st_mode) == 0o644


def test_what_is_shown_already_is_not_written_again(tmp_path: Path) -> None:
    sign = BoardSign({"RUNTIME_DIRECTORY": str(tmp_path)})
    sign.show("waiting", "waiting for a run")
    (tmp_path / "status").unlink()
    sign.show("waiting", "waiting for a run")
    assert not (tmp_path / "status").exists()
    sign.show("waiting", "waiting for the next round")
    assert (tmp_path / "status").exists()


def test_without_a_folder_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    BoardSign({}).show("training", "round 1")
    BoardSign({"RUNTIME_DIRECTORY": str(tmp_path / "gone")}).show("training", "round 1")
    assert list(tmp_path.iterdir()) == []
