"""`sparsyedge coordinator devices`, as a person reads it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.secured import make_authority, make_member

from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.record.store import AcceptedUpdate, Store
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.messages import DeviceStatus, Report

LIMIT_S = 300.0
EVERY_S = 0.1
ONLINE = DeviceStatus(state="online", boot_id="x")
BUSY, DONE, HOT, GONE, SPARE = (f"raspberry-pi-lab-{index:03}" for index in range(5))


def create(run_dir: Path, config: str = "{}") -> Store:
    return Store.create(run_dir, name="r1", fleet="lab", rounds=8, dense_bytes=1000, config=config)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run in its second round, with one device of each kind; names have 20 characters."""
    report = Report(
        run="r1",
        round=2,
        phases={"train": PhaseCost(12345.6, None)},
        energy_source="none",
        energy_kind="none",
        bytes_down=987_654_321,
        bytes_up=87_654_321,
        steps=10,
        loss=1.5,
        peak_rss_mb=80.0,
        pid=42,
    )
    with closing(create(tmp_path)) as store:
        for device in (BUSY, DONE, HOT, GONE, SPARE):
            store.note_device(device, ONLINE)
        store.note_device(HOT, DeviceStatus(state="online", boot_id="x", unfit="72 C, and it may train below 70 C"))
        store.note_device(GONE, DeviceStatus(state="offline", boot_id="x"))
        store.open_round(2, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=(BUSY, DONE, HOT, GONE))
        update = AcceptedUpdate(round=2, device=DONE, samples=5, sha256="d" * 64, bytes=120, nonzeros=40)
        store.accept_update(update, report)
        store.count_refusals(
            {
                (1, SPARE, "late"): (1, "an older reason"),
                (2, SPARE, "not asked"): (12, "not in\x1b[31m the cohort " + "x" * 80),
            }
        )
    return tmp_path


def show(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["devices", str(run_dir)]) == 0
    return capsys.readouterr().out.splitlines()


def test_devices_with_the_same_settings_are_told_of_together(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pi = DeviceSettings(python="3.13.5", machine="aarch64", runtime="stock", threads=4, max_temperature_c=80.0)
    with closing(Store.open(run_dir)) as store:
        for device in (BUSY, DONE):
            store.note_device(device, DeviceStatus(state="online", boot_id="x", software="sparsyedge 0.4.0"))
            store.note_settings(device, pi)
        store.note_settings(HOT, DeviceSettings(machine="x86_64", meter="rapl", wifi_only=True))
    text = re.sub(r"\s+", " ", " ".join(show(run_dir, monkeypatch, capsys)))
    assert (
        f"settings of {BUSY}, {DONE}: sparsyedge 0.4.0, Python 3.13.5, aarch64, runtime stock, 4 threads, "
        "trains below 80 C" in text
    )
    assert f"settings of {HOT}: x86_64, meter rapl, only on Wi-Fi" in text
    assert f"settings of {GONE}, {SPARE}: not known" in text
    assert main(["devices", str(run_dir), "--json"]) == 0
    found = {row["device"]: row for row in json.loads(capsys.readouterr().out)["devices"]}
    assert found[BUSY]["settings"]["threads"] == 4
    assert found[BUSY]["software"] == "sparsyedge 0.4.0"


def test_eighty_columns_are_enough_for_names_of_twenty(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = show(run_dir, monkeypatch, capsys)
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines if line.startswith("raspberry")}
    assert list(rows) == [BUSY, DONE, HOT, GONE, SPARE]
    assert rows[DONE].split()[2:] == ["2", "1", "0", "12345.6", "988", "87.65"]
    states = {name: " ".join(line.split()[1:-6]) for name, line in rows.items()}
    assert (states[BUSY], states[DONE], states[HOT], states[SPARE]) == ("training", "online", "unfit", "online")
    assert re.fullmatch(r"offline \d+ s", states[GONE])
    assert "5 devices: 2 online, 1 training, 1 unfit, 1 offline" in lines


def test_the_reason_is_below_the_device_that_it_is_about(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = show(run_dir, monkeypatch, capsys)
    names = [line.split()[0] for line in lines if line]
    assert lines[lines.index(next(line for line in lines if line.startswith(HOT))) + 1] == (
        "    unfit: 72 C, and it may train below 70 C"
    )
    assert names.index("refused") == names.index(SPARE) + 1
    text = "\n".join(lines)
    # Text that a device influenced must not control the terminal.
    assert "    refused in round 2 (12x): not in?[31m the cohort" in text
    assert "an older reason" not in text


def test_a_device_that_was_revoked_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = make_authority(tmp_path / "fleet")
    make_member(authority, "pi-01", tmp_path / "pi-01")
    with closing(create(tmp_path / "run", config=json.dumps({"authority": str(authority.folder)}))) as store:
        store.note_device("pi-01", ONLINE)
    assert any("pi-01                online" in line for line in show(tmp_path / "run", monkeypatch, capsys))
    revoke(authority, "pi-01")
    assert any("pi-01                revoked" in line for line in show(tmp_path / "run", monkeypatch, capsys))


def test_an_authority_that_is_gone_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create(tmp_path, config=json.dumps({"authority": str(tmp_path / "absent")})).close()
    assert "who is revoked is unknown" in "\n".join(show(tmp_path, monkeypatch, capsys))


def start_watching(command: str, run_dir: Path, output: int) -> subprocess.Popen[bytes]:
    script = (
        "import sys; from sparsyedge.coordinator.commands import watch; from sparsyedge.edge.cli import main;"
        f"watch.EVERY_S = {EVERY_S}; sys.exit(main())"
    )
    arguments = [sys.executable, "-c", script, "coordinator", command, str(run_dir), "--watch"]
    return subprocess.Popen(arguments, stdout=output, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"})


def read_until(source: int, text: str) -> str:
    """Read from the file descriptor until `text` appears."""
    until_s, read = time.monotonic() + LIMIT_S, ""
    while text not in read:
        assert time.monotonic() < until_s, read
        read += os.read(source, 65536).decode()
    return read


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(("command", "news"), [("devices", "newcomer"), ("status", "from newcomer: x")])
def test_watching_shows_what_is_new(run_dir: Path, command: str, news: str, terminal: bool) -> None:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = start_watching(command, run_dir, theirs)
    try:
        first = read_until(ours, "running, 0 of 8 rounds closed")
        assert news not in first
        with closing(Store.open(run_dir)) as store:
            store.count_refusals({(2, "newcomer", "late"): (1, "x")})
        read_until(ours, news)
        process.send_signal(2)
        assert process.wait(LIMIT_S) == 130
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
        os.close(theirs)


def test_watching_into_a_pipe_says_nothing_while_nothing_happens(run_dir: Path) -> None:
    ours, theirs = os.pipe()
    process = start_watching("status", run_dir, theirs)
    try:
        read = read_until(ours, "running, 0 of 8 rounds closed")
        with closing(Store.open(run_dir)) as store:
            store.touch()
        time.sleep(5 * EVERY_S)
    finally:
        process.kill()
        process.communicate()
        os.close(theirs)
    with os.fdopen(ours, "rb") as rest:
        read += rest.read().decode()
    assert read.count("rounds closed") == 1
