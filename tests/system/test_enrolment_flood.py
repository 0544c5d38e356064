"""An honest device enrols while others keep the enrolment listener of a real Mosquitto busy.

`make test-flood` has the same for 60 s and prints the figures of docs/explanation/security.md.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fixtures import flood
from fixtures.secured import login_of

from sparsyedge.coordinator.authority import mosquitto
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.authority.mosquitto import MAX_NEWCOMERS, PID_NAME
from sparsyedge.edge.commands.enrol_command import enrol

pytestmark = pytest.mark.mosquitto

LIMIT_S = 300.0
"""How long a flood may last; it ends with the test's block."""
LONG_S = 60.0
MAX_QUEUE_MB = (mosquitto.MAX_QUEUED_BYTES >> 20) + 200
"""The hard bound on a broker whose desk hears nothing for a while, as on a busy machine."""
MAX_BROKER_MB = 150
"""On an idle machine; docs/explanation/security.md has what it took."""
BAD_DEVICES = 4


def peak_mb(authority: Authority) -> int:
    """The most memory that the broker has had so far."""
    pid = int((authority.folder / PID_NAME).read_text())
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


@contextmanager
def flooding(authority: Authority, *attacks: tuple[str, ...]) -> Iterator[list[int]]:
    """Attacks by other processes while the block lasts; at its end, what each has sent."""
    sent: list[int] = []
    first = [sys.executable, flood.__file__, str(authority.settings.enrol_port), str(authority.folder / "ca.pem")]
    processes = [
        subprocess.Popen([*first, str(LIMIT_S), *attack], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for attack in attacks
    ]
    try:
        time.sleep(1.0)  # the flood is there before the honest device
        yield sent
        # communicate() closes their standard input, which ends them.
        sent.extend(int(process.communicate(timeout=LIMIT_S)[0]) for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def bad_devices_that_may_ask(authority: Authority) -> list[str]:
    with authority.ledger() as ledger:
        return [device for device in ledger.token_hashes() if device.startswith("bad-")]


def bad_devices(authority: Authority, size: int) -> list[tuple[str, ...]]:
    """Devices that were invited and have gone bad: whoever has no token is not even heard."""
    names = [f"bad-{size}-{number}" for number in range(BAD_DEVICES)]
    return [("requests", str(size), *login_of(authority, name)) for name in names]


def seconds_to_enrol(authority: Authority, folder: Path) -> float:
    began_s = time.monotonic()
    enrol(authority.invite("pi-01"), folder, timeout_s=LIMIT_S)
    return time.monotonic() - began_s


@pytest.mark.parametrize("size", [300, 8_000, 1_000_000])
def test_an_honest_device_enrols_while_others_flood(
    secured: Authority, tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    attacks = [("strangers",), ("strangers",), *bad_devices(secured, size)]
    with flooding(secured, *attacks), serving(secured):  # the desk opens in the middle of it
        seconds_to_enrol(secured, tmp_path / "identity")
        # Each of the bad ones loses its token: it had a share of requests, and a line in the log.
        wait_until(lambda: not bad_devices_that_may_ask(secured))
    assert peak_mb(secured) < MAX_QUEUE_MB
    with secured.ledger() as ledger:
        refusals = ledger.refusals()
        assert "pi-01" in ledger.token_hashes()
    assert sum(refusal.count for refusal in refusals) < 1000
    lines = [record for record in caplog.records if record.name.startswith("sparsyedge.coordinator")]
    assert len(lines) < 20, [record.getMessage() for record in lines]


def test_a_listener_that_strangers_fill_with_silent_connections_still_serves_members_and_recovers(
    secured: Authority, tmp_path: Path
) -> None:
    with serving(secured):
        with flooding(secured, ("places", str(MAX_NEWCOMERS))) as sent:
            # The coordinator's own listener, and so every member's, is another one.
            link = secured.link("somebody")
            link.open(LIMIT_S)
            link.close()
        assert sent[0] > 0
        assert seconds_to_enrol(secured, tmp_path / "identity") < LIMIT_S


@pytest.mark.slow
def test_a_minute_of_flood(secured: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    took: list[float] = []
    attacks = [("strangers",), ("strangers",), *bad_devices(secured, 8_000), *bad_devices(secured, 1_000_000)]
    with serving(secured), flooding(secured, *attacks) as sent:
        until_s = time.monotonic() + LONG_S - 10.0
        while time.monotonic() < until_s:
            took.append(seconds_to_enrol(secured, tmp_path / f"identity-{len(took)}"))
            threading.Event().wait(2.0)
    with capsys.disabled():
        print(f"\n{len(took)} enrolments under a flood of {LONG_S:g} s: {max(took):.1f} s at most")
        print(f"sent: {sent}; broker at most {peak_mb(secured)} MB")
    assert max(took) < LIMIT_S
    assert peak_mb(secured) < MAX_BROKER_MB
