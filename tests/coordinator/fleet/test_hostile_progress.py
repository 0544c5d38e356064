"""Devices that say what they do wrongly, too often or too loudly, with a real Mosquitto: the round goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fixtures.scripted_fleet import TOPICS, FakeDevice, Fleet, RunThread, retained_below

from sparsyedge.coordinator.fleet.live_file import own_costs
from sparsyedge.coordinator.record.live import DeviceActivity, LiveReader
from sparsyedge.edge.protocol.messages import Accepted, Progress, RoundTask, encode

pytestmark = pytest.mark.mosquitto

LIMIT_S = 300.0
GROWTH_BYTES = 48 << 20
FLOOD = """
import socket, struct, sys, time
port, topic, per_second = int(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
link = socket.create_connection(("127.0.0.1", port))
name = b"flood"
body = b"\\x00\\x04MQTT\\x04\\x02\\x00\\x3c" + struct.pack(">H", len(name)) + name
link.sendall(bytes([0x10, len(body)]) + body)
assert link.recv(4)[:1] == b"\\x20"
def publish(payload):
    body = struct.pack(">H", len(topic)) + topic + payload
    length, sizes = len(body), b""
    while True:
        length, low = divmod(length, 128)
        sizes += bytes([low | (0x80 if length else 0)])
        if not length:
            return b"\\x31" + sizes + body
kinds = [b"", b"{", b'{"step": NaN}', b"x" * 1500, b"y" * 200]
batch = b"".join(publish(kinds[number % len(kinds)]) for number in range(per_second // 100))
print("floods", flush=True)
while True:
    started = time.monotonic()
    link.sendall(batch)
    time.sleep(max(0.0, 0.01 - (time.monotonic() - started)))
"""


def said(fleet: Fleet) -> dict[str, DeviceActivity]:
    reader = LiveReader.open(fleet.config.run_path)
    if reader is None:
        return {}
    with closing(reader):
        return reader.devices()


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.05)


def progress(task: RoundTask, step: int) -> bytes:
    return encode(Progress(run=task.run, round=task.round, phase="train", step=step, steps=100))


def tell(device: FakeDevice, payload: bytes, *, about: str | None = None) -> None:
    until(lambda: device.link.tell(TOPICS.progress(about or device.name), payload))


def deliver_all(run: RunThread, devices: list[FakeDevice], first: RoundTask) -> None:
    """Take both rounds of the run to their end."""
    for number in (1, 2):
        for device in devices:
            task = first if number == 1 else device.until_round(number)
            assert isinstance(device.deliver(task), Accepted)
    assert run.result().run.state == "finished"


@contextmanager
def flooding(port: int, topic: str, *, per_second: int) -> Iterator[None]:
    command = [sys.executable, "-c", FLOOD, str(port), topic, str(per_second)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"floods\n"
        yield
        assert process.poll() is None, "it was still at it"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_what_devices_say_is_shown_and_what_is_wrong_is_refused(fleet: Fleet) -> None:
    run = fleet.start()
    devices = fleet.join("d1", "d2", "d3")
    task, *_ = [device.until_round(1) for device in devices]
    tell(devices[0], progress(task, 7))
    until(lambda: "d1" in said(fleet))
    assert said(fleet)["d1"].step == 7
    tell(devices[1], progress(task, 7).replace(b'"step":7', b'"step":NaN'))
    tell(devices[0], b"x" * 100_000)
    tell(devices[2], progress(task, 50))
    until(lambda: "d3" in said(fleet))
    until(lambda: TOPICS.progress("d1") not in retained_below(fleet.port, TOPICS.progress("+")))
    until(lambda: set(said(fleet)) == {"d3"})
    deliver_all(run, devices, task)
    assert said(fleet) == {}
    reasons = fleet.refused()
    assert any(reason.startswith("unreadable progress: ") for reason in reasons)
    assert "had the broker keep a message that only passes through" in reasons


# How many a coordinator can bear depends on its processor, so a slow machine tries the lower rate alone.
@pytest.mark.parametrize("per_second", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flood_of_messages_neither_grows_the_coordinator_nor_stalls_a_round(fleet: Fleet, per_second: int) -> None:
    run = fleet.start()
    devices = fleet.join("d1", "d2", "d3")
    task, *_ = [device.until_round(1) for device in devices]
    before = own_costs(())[1]
    with flooding(fleet.port, TOPICS.progress("d1"), per_second=per_second):
        tell(devices[1], progress(task, 7))
        until(lambda: "d2" in said(fleet))
        time.sleep(2.0)  # the flood needs time to do harm
        tell(devices[1], progress(task, 9))
        until(lambda: said(fleet)["d2"].step == 9)
        deliver_all(run, devices, task)
    assert own_costs(())[1] - before < GROWTH_BYTES


def test_made_up_devices_take_no_place_in_the_live_record(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.start()
    devices = fleet.join("d1", "d2", "d3")
    task, *_ = [device.until_round(1) for device in devices]
    for number in range(50):
        tell(devices[0], progress(task, 1), about=f"x{number}")
    tell(devices[0], progress(task, 3))
    until(lambda: "d1" in said(fleet))
    assert set(said(fleet)) == {"d1"}
    deliver_all(run, devices, task)
