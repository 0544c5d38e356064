"""The launcher: which slot it starts, and when it goes back. Slots are shell scripts here."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparsyedge.edge.upgrade import launch
from sparsyedge.edge.upgrade.launch import EXIT_SWITCHED, FACTORY, Trial

LIMIT_S = 300.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "slots"
    folder.mkdir()
    add_environment(tmp_path / "factory", "exit 0")
    return folder


def add_environment(place: Path, script: str) -> None:
    """An environment whose Python is a script; it notes in the file `ran` that it ran."""
    (place / "bin").mkdir(parents=True)
    python = place / "bin" / "python"
    noted = (place.parent if place.name == FACTORY else place.parent.parent) / "ran"
    python.write_text(f"#!/bin/sh\necho {place.name} >> {noted}\n{script}\n")
    python.chmod(0o755)


def begin_trial(folder: Path, *, limit_s: float = LIMIT_S, boots: int = 2) -> None:
    launch.write_trial(folder, Trial("a", FACTORY, "ab", boots, limit_s))
    launch.switch(folder, "a")


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", launch.__file__, folder, folder.parent / "factory", "--config", "device.toml"]
    )


def run(folder: Path) -> int:
    return start(folder).wait(LIMIT_S)


def ran(folder: Path) -> list[str]:
    return (folder.parent / "ran").read_text().split()


def test_without_a_slot_the_factory_environment_starts(folder: Path) -> None:
    assert run(folder) == 0
    assert ran(folder) == ["factory"]


def test_a_kept_slot_starts_and_its_exit_code_is_passed_on(folder: Path) -> None:
    add_environment(folder / "a", "exit 7")
    launch.switch(folder, "a")
    assert run(folder) == 7
    assert ran(folder) == ["a"]


def test_a_device_that_has_switched_is_started_again_from_the_new_slot(folder: Path) -> None:
    add_environment(folder / "a", f"ln -sfn b {folder}/current; exit {EXIT_SWITCHED}")
    add_environment(folder / "b", "exit 0")
    launch.switch(folder, "a")
    assert run(folder) == 0
    assert ran(folder) == ["a", "b"]


def test_a_slot_that_crashes_at_its_trial_is_tried_twice_and_then_given_up(folder: Path) -> None:
    add_environment(folder / "a", "exit 3")
    begin_trial(folder)
    assert run(folder) == 0
    assert ran(folder) == ["a", "a", "factory"]
    assert launch.current_slot(folder) == FACTORY
    assert "ended with code 3" in (folder / launch.RETURNED_NAME).read_text()
    assert launch.read_trial(folder) is None


def test_a_slot_that_hangs_at_its_trial_is_ended_and_given_up(folder: Path) -> None:
    add_environment(folder / "a", "exec sleep 1000")
    begin_trial(folder, limit_s=0.5)
    assert run(folder) == 0
    assert ran(folder) == ["a", "factory"]
    assert "not acknowledged by the coordinator within 0.5 s" in (folder / launch.RETURNED_NAME).read_text()


def test_a_slot_that_is_acknowledged_in_time_stays(folder: Path) -> None:
    add_environment(folder / "a", f"rm {folder}/{launch.TRIAL_NAME}; sleep 1; exit 0")
    begin_trial(folder, limit_s=0.9)
    assert run(folder) == 0
    assert ran(folder) == ["a"]
    assert launch.current_slot(folder) == "a"


def test_a_slot_without_a_python_is_given_up(folder: Path) -> None:
    begin_trial(folder)
    assert run(folder) == 0
    assert ran(folder) == ["factory"]
    launch.switch(folder, "b")
    assert run(folder) == 0
    assert ran(folder) == ["factory", "factory"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"slot": "../x", "previous": "b", "bundle": "", "boots_left": 9}'])
def test_a_damaged_trial_file_leads_back_to_the_factory_environment(folder: Path, content: str) -> None:
    add_environment(folder / "a", "exit 0")
    launch.switch(folder, "a")
    (folder / launch.TRIAL_NAME).write_text(content)
    assert run(folder) == 0
    assert ran(folder) == ["factory"]


def test_a_device_killed_before_it_switched_is_not_on_trial(folder: Path) -> None:
    launch.write_trial(folder, Trial("a", FACTORY, "ab", 2, LIMIT_S))
    assert run(folder) == 0
    assert ran(folder) == ["factory"]
    assert launch.read_trial(folder) is None


def test_every_power_cut_during_a_trial_costs_one_start(folder: Path) -> None:
    begin_trial(folder)
    first = launch.take_boot(folder)
    second = launch.take_boot(folder)
    assert (first and first.boots_left, second and second.boots_left) == (1, 0)
    assert launch.take_boot(folder) is None
    assert launch.current_slot(folder) == FACTORY


def test_a_stop_reaches_the_device_and_costs_no_start(folder: Path) -> None:
    add_environment(folder / "a", f"trap 'exit 0' TERM; : > {folder.parent}/ready; while true; do sleep 0.05; done")
    begin_trial(folder)
    launcher = start(folder)
    until_s = time.monotonic() + LIMIT_S
    while not (folder.parent / "ready").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(LIMIT_S) == 0
    trial = launch.read_trial(folder)
    assert trial is not None
    assert trial.boots_left == 2


def test_a_device_ends_with_a_launcher_that_is_killed(folder: Path) -> None:
    add_environment(folder / "a", f"echo $$ > {folder.parent}/pid; exec sleep 1000")
    launch.switch(folder, "a")
    launcher = start(folder)
    until_s = time.monotonic() + LIMIT_S
    pid_file = folder.parent / "pid"
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < until_s:
        time.sleep(0.02)
    pid = int(pid_file.read_text())
    launcher.kill()
    launcher.wait(LIMIT_S)
    while is_alive(pid):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
