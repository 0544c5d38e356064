"""sign.sh, as a board runs it, with folders in the place of /sys/class/leds and /run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparsyedge.edge.device.board_sign import BoardSign, State
from sparsyedge.hardware import flash

SCRIPT = Path(flash.__file__).with_name("card") / "sign.sh"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    for folder in ("leds/ACT", "device", "run"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("trigger", "delay_on", "delay_off"):
        (tmp_path / "leds/ACT" / name).touch()
    return tmp_path


def sign(board: Path, *, leds: str = "leds") -> str:
    """Run the script; returns what stands above the login."""
    places = [f"{board / 'device'} {board / 'firstboot'}", str(board / leds), str(board / "run")]
    done = subprocess.run(["sh", str(SCRIPT), *places], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    shown = (board / "run/issue.d/sparsyedge.issue").read_text()
    assert (board / "run/motd.d/sparsyedge").read_text() == shown
    return shown


def led(board: Path) -> tuple[str, ...]:
    return tuple((board / "leds/ACT" / name).read_text().strip() for name in ("trigger", "delay_on", "delay_off"))


@pytest.mark.parametrize(
    ("state", "pattern"),
    [
        ("starting", ("timer", "250", "250")),
        ("waiting", ("heartbeat", "", "")),
        ("training", ("timer", "1000", "1000")),
        ("sending", ("timer", "100", "100")),
        ("paused", ("timer", "100", "2900")),
        ("trouble", ("timer", "1900", "100")),
    ],
)
def test_the_led_and_the_console_show_what_the_device_says(
    board: Path, state: State, pattern: tuple[str, str, str]
) -> None:
    BoardSign({"RUNTIME_DIRECTORY": str(board / "device")}).show(state, "round 3 of 10: 71.5 C, limit 70 C")
    assert sign(board) == "sparsyedge: round 3 of 10: 71.5 C, limit 70 C\n"
    assert led(board) == pattern


def test_a_board_without_a_led_shows_the_sentence_alone(board: Path) -> None:
    BoardSign({"RUNTIME_DIRECTORY": str(board / "device")}).show("waiting", "waiting for a run")
    assert sign(board, leds="none") == "sparsyedge: waiting for a run\n"


def test_the_first_boot_is_shown_until_the_device_speaks(board: Path) -> None:
    (board / "firstboot").mkdir()
    (board / "firstboot/status").write_text("starting\nfirst boot: enrol\n")
    assert sign(board) == "sparsyedge: first boot: enrol\n"
    (board / "device/status").write_text("waiting\nwaiting for a run\n")
    assert sign(board) == "sparsyedge: waiting for a run\n"


def test_a_device_that_has_ended_leaves_the_led_to_the_system(board: Path) -> None:
    assert sign(board) == "sparsyedge: not running\n"
    assert led(board)[0] == "mmc0"


def test_what_a_taken_over_device_writes_cannot_play_with_the_terminal(board: Path) -> None:
    (board / "device/status").write_bytes(b"tr;aining $(x)\n\x1b[2Jlog in at \\4 `reboot` $HOME " + b"x" * 5000 + b"\n")
    shown = sign(board)
    assert shown.startswith("sparsyedge: 2Jlog in at 4 reboot HOME xxx")
    assert len(shown) < 200
    assert led(board)[0] == "mmc0"


def test_what_the_device_says_while_the_script_works_is_shown_too(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (board / "device/status").write_text("sending\nsending its update\n")
    (board / "bin").mkdir()
    agetty = board / "bin/agetty"
    agetty.write_text(f"#!/bin/sh\nprintf 'waiting\\nwaiting for a run\\n' > {board / 'device/status'}\n")
    agetty.chmod(0o755)
    monkeypatch.setenv("PATH", str(board / "bin"), prepend=":")
    assert sign(board) == "sparsyedge: waiting for a run\n"
    assert led(board)[0] == "heartbeat"
