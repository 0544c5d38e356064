from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsyedge.edge.device import termux_api
from sparsyedge.edge.device.termux_api import battery_status

NAP_S = f"31557.{os.getpid()}"
"""A number that no other process has in its command line, nor another worker's."""


def script(folder: Path, text: str) -> str:
    command = folder / "termux-battery-status"
    command.write_text(f"#!/bin/sh\n{text}\n")
    command.chmod(0o755)
    return str(command)


def napping() -> int:
    """How many processes wait for what never comes."""
    found = 0
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += NAP_S.encode() in line.read_bytes()
        except OSError:
            continue
    return found


def test_a_command_that_never_answers_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Termux's own scripts do, which puts what waits into a process group of its own.
    command = script(tmp_path, f"timeout 0 sleep {NAP_S}")
    monkeypatch.setattr(termux_api, "ANSWER_LIMIT_S", 1.0)
    with pytest.raises(OSError, match=r"termux-battery-status does not answer: .* timed out"):
        battery_status(command)
    assert napping() == 0


def test_a_command_that_hangs_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "first"
    hang_once = f"[ -e {first} ] || {{ touch {first}; timeout 0 sleep {NAP_S}; }}"
    command = script(tmp_path, f"{hang_once}\necho '{{\"percentage\": 71}}'")
    monkeypatch.setattr(termux_api, "TRIES", 5)
    monkeypatch.setattr(termux_api, "ANSWER_LIMIT_S", 2.0)
    assert battery_status(command).percentage == 71
    assert first.exists()
    assert napping() == 0
