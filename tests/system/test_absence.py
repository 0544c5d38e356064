"""How soon a fleet learns that a device is gone: on a real clock, with a real Mosquitto and devices as processes.

`make test-absence`; the suite has tests of everything but the seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from fixtures.broker import Broker

from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import DeviceStatus, decode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

SILENT_S = 45.0
CLOSED_S = 5.0
"""What docs/explanation/rounds.md promises for a device that falls silent, and for one whose connection is closed."""
START_S = 60.0
DEVICES = 8
APART_S = 1.0
"""Mosquitto looks for silent clients every few seconds; devices that stop one after the other meet it in all phases."""

TOPICS = Topics("lab")
DEVICE = """
import signal
import sys
from sparsyedge.edge.device.courier import Courier, Member, offline_status
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.messages import Topics

port, name, topics = int(sys.argv[1]), sys.argv[2], Topics("lab")
link = Link("127.0.0.1", port, identity=name, will=(topics.status(name), offline_status("b")))
courier = Courier(link, Member(device=name, topics=topics, boot_id="b", software="test", samples=1))
courier.join()
link.open(60)
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
try:
    while True:
        courier.listen()
finally:
    courier.leave()
    link.close()
"""


class Watcher:
    """Hears what the coordinator would hear."""

    def __init__(self, port: int) -> None:
        self.link = Link("127.0.0.1", port, identity="watcher")
        self.link.subscribe(TOPICS.status("+"))
        self.link.open(START_S)

    def await_states(self, names: set[str], state: str, *, within_s: float) -> dict[str, float]:
        """When each of the devices was heard to be in a state."""
        heard: dict[str, float] = {}
        until_s = time.monotonic() + within_s
        while set(heard) < names and time.monotonic() < until_s:
            event = self.link.receive(0.1)
            if isinstance(event, Received):
                _, name, _ = TOPICS.parse(event.topic)
                if decode(event.payload, DeviceStatus).state == state:
                    heard.setdefault(name, time.monotonic())
        return heard


@pytest.fixture
def watcher(broker: Broker) -> Iterator[Watcher]:
    watcher = Watcher(broker.port)
    yield watcher
    watcher.link.close()


@pytest.fixture
def start(broker: Broker) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []

    def begin(name: str) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen([sys.executable, "-c", DEVICE, str(broker.port), name]))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def lose(
    devices: dict[str, subprocess.Popen[bytes]], watcher: Watcher, signal_number: int, limit_s: float
) -> list[float]:
    """Have the devices stop one after the other, and measure for how many seconds each goes unnoticed."""
    names = set(devices)
    assert set(watcher.await_states(names, "online", within_s=START_S)) == names
    stopped_s: dict[str, float] = {}
    heard_s: dict[str, float] = {}
    for name, process in devices.items():
        stopped_s[name] = time.monotonic()
        os.kill(process.pid, signal_number)
        heard_s |= watcher.await_states(names - set(heard_s), "offline", within_s=APART_S)
    heard_s |= watcher.await_states(names - set(heard_s), "offline", within_s=limit_s + START_S)
    assert set(heard_s) == names
    seconds = sorted(heard_s[name] - stopped_s[name] for name in devices)
    print(f"{signal.Signals(signal_number).name}: noticed after {seconds[0]:.1f} to {seconds[-1]:.1f} s", flush=True)
    return seconds


@pytest.mark.parametrize(
    ("signal_number", "limit_s"),
    [
        pytest.param(signal.SIGSTOP, SILENT_S, id="silent"),
        pytest.param(signal.SIGKILL, CLOSED_S, id="dead"),
        pytest.param(signal.SIGTERM, CLOSED_S, id="left"),
    ],
)
def test_devices_that_are_gone_are_noticed_in_time(
    watcher: Watcher, start: Callable[[str], subprocess.Popen[bytes]], signal_number: int, limit_s: float
) -> None:
    devices = {f"d{number}": start(f"d{number}") for number in range(DEVICES)}
    assert lose(devices, watcher, signal_number, limit_s)[-1] <= limit_s
