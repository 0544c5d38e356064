"""How commands and services handle a ledger or store that is damaged or locked by another process."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fixtures.secured import make_authority

from sparsyedge.coordinator.authority import ledger as ledger_module
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serve
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.revoked_devices import RevokedDevices
from sparsyedge.coordinator.record import store_reader
from sparsyedge.coordinator.record.store import STORE_NAME, Store
from sparsyedge.edge.errors import StoreError, StoreLocked

LIMIT_S = 300.0
HOLDER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process lock the file, like a backup that hangs."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reader, "BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr("sparsyedge.coordinator.fleet.revoked_devices.LEDGER_TIMEOUT_S", 0.2)
    for defaults in (ledger_module.Ledger.__init__, Authority.ledger.__wrapped__):  # type: ignore[attr-defined]
        assert defaults.__kwdefaults__ is not None
        monkeypatch.setitem(defaults.__kwdefaults__, "timeout_s", 0.2)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    Store.create(tmp_path / "run", name="r", fleet="f", rounds=3, dense_bytes=1, config="{}").close()
    return tmp_path / "run"


@pytest.fixture
def fleet(tmp_path: Path) -> Authority:
    return make_authority(tmp_path / "fleet")


@pytest.mark.parametrize("command", [["token", "pi-01"], ["identities"], ["revoke", "pi-01"]])
def test_a_command_names_who_has_locked_the_ledger(
    fleet: Authority, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with locked(fleet.folder / "authority.sqlite") as holder, pytest.raises(StoreLocked) as found:
        main([*command, "--dir", str(fleet.folder)])
    assert "authority.sqlite has been locked" in str(found.value)
    assert f"process {holder.pid} (" in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("command", ["stop", "pause"])
def test_a_command_names_who_has_locked_the_store(run_dir: Path, command: str) -> None:
    with locked(run_dir / STORE_NAME) as holder, pytest.raises(StoreLocked, match=f"process {holder.pid}"):
        main([command, str(run_dir)])


def damage(path: Path) -> None:
    """Overwrite all but the header of a database."""
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))


@pytest.mark.parametrize("command", ["status", "devices", "stop", "metrics"])
def test_a_damaged_store_is_named_with_what_to_do(run_dir: Path, command: str) -> None:
    damage(run_dir / STORE_NAME)
    with pytest.raises(StoreError, match=r"run\.sqlite is damaged: .*malformed.*restore it from a backup"):
        main([command, str(run_dir)])


def test_a_damaged_ledger_is_named_with_what_to_do(fleet: Authority) -> None:
    damage(fleet.folder / "authority.sqlite")
    with pytest.raises(StoreError, match=r"authority\.sqlite is damaged: .*restore it from a backup"):
        main(["identities", "--dir", str(fleet.folder)])


def kill_once_awaited(holder: subprocess.Popen[str], caplog: pytest.LogCaptureFixture) -> None:
    until_s = time.monotonic() + 60.0
    while "waiting for it" not in caplog.text and time.monotonic() < until_s:
        time.sleep(0.01)
    holder.kill()


def test_a_service_waits_for_a_locked_store_and_loses_nothing(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with closing(Store.open(run_dir)) as store:
        store.wait_for_lock(lambda: True)
        with locked(run_dir / STORE_NAME) as holder:
            release = threading.Thread(target=kill_once_awaited, args=(holder, caplog))
            release.start()
            store.request_stop()
            release.join()
        assert store.stop_requested()
    assert caplog.text.count("waiting for it") == 1
    assert f"process {holder.pid}" in caplog.text
    assert "is free again" in caplog.text


def test_a_service_that_is_told_to_stop_waits_no_longer(run_dir: Path) -> None:
    stopped = threading.Event()
    with closing(Store.open(run_dir)) as store, locked(run_dir / STORE_NAME):
        store.wait_for_lock(lambda: not stopped.is_set())
        threading.Timer(0.5, stopped.set).start()
        with pytest.raises(StoreLocked):
            store.request_stop()
        assert stopped.is_set()


@pytest.mark.parametrize("fault", ["locked", "damaged", "gone"])
def test_a_run_goes_on_with_the_bans_that_it_knows(
    fleet: Authority, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig(
        name="r",
        fleet="lab",
        authority=str(fleet.folder),
        rounds=1,
        cohort_size=1,
        artifacts="a",
        dataset="d",
        run_dir="r",
    )
    revoked_devices, path = RevokedDevices(config), fleet.folder / "authority.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        columns = "serial, device, issued_at, expires_at, revoked_at"
        db.execute(f"INSERT INTO certificates ({columns}) VALUES ('ab', 'pi-01', 0, 0, 1)")
    assert revoked_devices.refresh(0.0) == {"pi-01"}
    if fault == "locked":
        with locked(path):
            assert revoked_devices.refresh(10.0) == set()
    else:
        damage(path)
        if fault == "gone":
            path.unlink()
            path.mkdir()
        assert revoked_devices.refresh(10.0) == set()
    assert "pi-01" in revoked_devices
    assert "this run misses recent revocations" in caplog.text


@pytest.mark.parametrize("fault", ["locked", "damaged", "no folder"])
def test_the_enrolment_thread_says_what_is_wrong_and_stays(
    fleet: Authority, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, stopped = fleet.folder / "authority.sqlite", threading.Event()
    thread = threading.Thread(target=serve, args=(fleet, stopped))
    with locked(path) if fault == "locked" else closing(path.open("rb")):
        if fault == "damaged":
            damage(path)
        elif fault == "no folder":
            fleet.folder.rename(fleet.folder.with_name("moved"))
        thread.start()
        until_s = time.monotonic() + LIMIT_S
        while "newcomers are not answered" not in caplog.text:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        assert thread.is_alive()
        stopped.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert "Traceback" not in caplog.text
