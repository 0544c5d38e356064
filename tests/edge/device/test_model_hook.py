"""The user's command: never in the way, ended when its time is up, its output bounded."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from sparsyedge.edge.device.model_hook import OUTPUT_LINES, ModelHook

pytestmark = pytest.mark.timeout(300)


def run(command: list[str], *, limit_s: float = 30.0, **variables: str) -> None:
    hook = ModelHook(command, limit_s=limit_s)
    hook.start(variables)
    hook.finish()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is only waiting to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_command_gets_the_variables_and_no_word_with_the_service_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    run(["sh", "-c", f"env > {tmp_path / 'seen'}"], SPARSYEDGE_ROUND="7")
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "SPARSYEDGE_ROUND=7" in seen
    assert not [line for line in seen if line.startswith("NOTIFY_SOCKET")]


def test_arguments_are_not_read_by_a_shell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run(["echo", "$HOME; touch", str(tmp_path / "made")])
    assert "$HOME; touch" in caplog.text
    assert not (tmp_path / "made").exists()


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = f"trap '' TERM; sleep 600 & echo $! > {tmp_path / 'child'}; echo $$ > {tmp_path / 'own'}; wait; sleep 600"
    run(["sh", "-c", script], limit_s=1.0)
    assert "was ended: it took longer than 1 s" in caplog.text
    pids = [int((tmp_path / name).read_text()) for name in ("child", "own")]
    until_s = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_what_a_command_leaves_running_ends_with_it(tmp_path: Path) -> None:
    run(["sh", "-c", f"sleep 600 & echo $! > {tmp_path / 'child'}"])
    pid, until_s = int((tmp_path / "child").read_text()), time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_a_flood_of_output_is_cut_and_does_not_block_the_command(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run(["sh", "-c", "yes 'a \x1b[31mline' | head -c 3000000"])
    assert "more bytes of output are not shown" in caplog.text
    assert "is done" in caplog.text
    assert len(caplog.records) <= OUTPUT_LINES + 2
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sh", "-c", "exit 3"], "failed with code 3"),
        (["/no/such/program"], "cannot run /no/such/program"),
        (["echo", "zero\0byte"], "cannot run echo"),
    ],
)
def test_a_command_that_fails_is_a_warning(command: list[str], said: str, caplog: pytest.LogCaptureFixture) -> None:
    run(command)
    assert said in caplog.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_device_that_stops_ends_the_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook = ModelHook(["sh", "-c", f"touch {tmp_path / 'begun'}; sleep 600"], limit_s=600.0)
    hook.start({})
    until_s = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    hook.stop()
    assert "was ended: this device stops" in caplog.text


def test_only_the_latest_of_several_changes_waits_for_a_slow_command(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.05; done; echo $ROUND >> {tmp_path / 'rounds'}"
    hook = ModelHook(["sh", "-c", script], limit_s=50.0)
    hook.start({"ROUND": "1"})
    until_s = time.monotonic() + 30
    while hook.is_waiting and time.monotonic() < until_s:
        time.sleep(0.01)
    hook.start({"ROUND": "2"})
    hook.start({"ROUND": "3"})
    gate.touch()
    hook.finish()
    assert (tmp_path / "rounds").read_text().split() == ["1", "3"]
