"""Programs of an upgrade: held while the device trains, ended when they take too long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.upgrade.install import Program

LIMIT_S = 300.0
# One process: a shell that is stopped while it starts another one is not "stopped" but waits for that one ("D").
SLEEPS = "echo $$ > {place}; exec sleep 1000"


def state_of(pid: int) -> str:
    """R, S, T (stopped) and so on, as /proc says it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(place: Path) -> int:
    until_s = time.monotonic() + LIMIT_S
    while not (place.exists() and place.read_text().strip()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return int(place.read_text())


def test_a_held_program_stands_still_until_its_turn_comes_again(tmp_path: Path) -> None:
    program, place = Program(), tmp_path / "pid"
    turns = program.run("the program", ["sh", "-c", SLEEPS.format(place=place)], limit_s=LIMIT_S)
    next(turns)
    pid = wait_for(place)
    program.hold()
    until_s = time.monotonic() + LIMIT_S
    while state_of(pid) != "T":
        assert time.monotonic() < until_s
    next(turns)
    while state_of(pid) == "T":
        assert time.monotonic() < until_s
    turns.close()  # type: ignore[attr-defined]
    assert not Path(f"/proc/{pid}").exists()


def test_the_time_that_a_program_is_held_does_not_count(tmp_path: Path) -> None:
    program, place = Program(), tmp_path / "pid"
    turns = program.run("the program", ["sh", "-c", SLEEPS.format(place=place)], limit_s=0.3)
    next(turns)
    program.hold()
    time.sleep(0.5)
    next(turns)
    time.sleep(0.5)
    with pytest.raises(SecurityError, match=r"the program did not end within 0\.3 s"):
        next(turns)


def test_a_failure_is_told_with_the_last_line() -> None:
    with pytest.raises(SecurityError, match="the program failed: no space left"):
        list(Program().run("the program", ["sh", "-c", "echo begun; echo no space left; exit 1"], limit_s=LIMIT_S))
