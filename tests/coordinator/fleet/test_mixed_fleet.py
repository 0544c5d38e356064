"""Devices and a coordinator of different versions, over a real broker: served, or refused by name."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fixtures.scripted_fleet import PATIENCE_S, TOPICS, FakeDevice, Fleet

from sparsyedge.coordinator.commands.devices_view import as_lines, look_at_devices
from sparsyedge.coordinator.fleet import announcements as board
from sparsyedge.edge import compatibility
from sparsyedge.edge.compatibility import FIRST, Span, Speaks, own_software
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.messages import Accepted
from sparsyedge.edge.protocol.mqtt import Link

pytestmark = pytest.mark.mosquitto

NEXT = Speaks(protocol=Span(1, 2), manifest=Span(5, 6))
LATER = Speaks(protocol=Span(2, 3), manifest=Span(5, 6))


def upgrade(monkeypatch: pytest.MonkeyPatch, speaks: Speaks) -> None:
    """Make this process, the coordinator's, one of a later version."""
    monkeypatch.setattr(compatibility, "OURS", speaks)
    monkeypatch.setattr(board, "OURS", speaks)


def reasons(fleet: Fleet) -> dict[str, str]:
    try:
        store = fleet.store()
    except RunError:  # the run is only being set up
        return {}
    with closing(store):
        return {view.member.device: view.member.unfit for view in look_at_devices(store)[0] if view.member.unfit}


def until_unfit(fleet: Fleet, device: str) -> str:
    until_s = time.monotonic() + PATIENCE_S
    while device not in reasons(fleet):
        assert time.monotonic() < until_s, f"{device} is not unfit"
        time.sleep(0.05)
    return reasons(fleet)[device]


def deliver_rounds(devices: list[FakeDevice]) -> None:
    for number in (1, 2):
        for device in devices:
            assert isinstance(device.deliver(device.until_round(number)), Accepted)


def test_a_newer_coordinator_speaks_the_version_of_its_older_devices(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(monkeypatch, NEXT)
    run = fleet.start(cohort_size=2)
    older, newer = fleet.join("d1", "d2")
    newer.speaks = NEXT
    newer.say_hello()
    task = older.until_round(1)
    assert (task.protocol, task.speaks, task.software) == (1, NEXT, own_software())
    deliver_rounds([older, newer])
    assert run.result().run.state == "finished"


def test_an_older_coordinator_is_answered_by_newer_devices(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2)
    devices = fleet.join("d1", "d2")
    for device in devices:
        device.speaks = NEXT
        device.say_hello()
    deliver_rounds(devices)
    assert run.result().run.state == "finished"


def test_a_device_too_old_for_the_coordinator_is_unfit_by_name_logged_once_and_served_after_its_upgrade(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    upgrade(monkeypatch, LATER)
    run = fleet.start(cohort_size=2)
    (old,) = fleet.join("d1")
    reason = until_unfit(fleet, "d1")
    assert reason == (
        "upgrade sparsyedge on d1: d1 runs a sparsyedge of unknown version and reads protocol 1, "
        f"the coordinator runs {own_software()} and writes protocol 2"
    )
    for _ in range(3):
        old.say_hello()
    (current,) = fleet.join("d2")
    current.speaks = LATER
    current.say_hello()
    with closing(fleet.store()) as store:
        lines = as_lines(look_at_devices(store)[0], width=80)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("d1 ") and " unfit " in line for line in lines)
    assert "    unfit: upgrade sparsyedge on d1: d1 runs a sparsyedge of unknown version and" in lines
    old.speaks = LATER
    old.say_hello()
    deliver_rounds([old, current])
    assert run.result().run.state == "finished"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("upgrade sparsyedge on d1" in warning for warning in warnings) == 1


def test_a_device_too_new_for_the_coordinator_says_with_it_that_the_coordinator_is_to_be_upgraded(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2)
    link = Link("127.0.0.1", fleet.port, identity="d9")
    member = Member(device="d9", topics=TOPICS, boot_id="b", software="sparsyedge 7.0.0", samples=1, speaks=LATER)
    courier = Courier(link, member)
    courier.join()
    link.open()
    courier.listen(PATIENCE_S)
    reason = until_unfit(fleet, "d9")
    deliver_rounds(fleet.join("d1", "d2"))
    assert run.result().run.state == "finished"
    while not courier.unreadable:
        assert courier.listen(PATIENCE_S), "no task came"
    link.close()
    assert courier.task is None
    assert courier.unreadable == reason
    assert reason == (
        "upgrade sparsyedge on the coordinator: d9 runs sparsyedge 7.0.0 and reads protocol 2 to 3, "
        f"the coordinator runs {own_software()} and writes protocol 1"
    )


def test_a_device_that_cannot_read_the_manifest_is_unfit_before_it_fetches_anything(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.deliver(device.until_round(1))
    (other,) = fleet.join("d2")
    other.speaks = Speaks(protocol=FIRST.protocol, manifest=Span(6, 6))
    other.say_hello()
    assert "reads manifest 6, the run's artifacts have manifest 5" in until_unfit(fleet, "d2")
    device.deliver(device.until_round(2))
    assert run.result().run.state == "finished"


def test_a_device_process_of_this_version_says_why_it_does_not_train_under_a_later_coordinator(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, log = tmp_path / "device.toml", tmp_path / "device.log"
    samples = np.zeros((4, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x_train=samples, y_train=np.arange(4), x_test=samples, y_test=np.arange(4))
    config.write_text(
        f'id = "pi-7"\nfleet = "lab"\nwork_dir = "work"\nmeter = "none"\n'
        f'[broker]\nport = {fleet.port}\n[data]\ndataset = "own.npz"\n'
    )
    upgrade(monkeypatch, LATER)
    run = fleet.start(cohort_size=1)
    with log.open("wb") as output:
        command = [sys.executable, "-m", "sparsyedge.edge", "--config", str(config), "--until-finished"]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        reason = until_unfit(fleet, "pi-7")
        assert reason.startswith(f"upgrade sparsyedge on pi-7: pi-7 runs {own_software()} and reads protocol 1, ")
        assert reason.endswith(f"the coordinator runs {own_software()} and writes protocol 2")
        (current,) = fleet.join("d2")
        current.speaks = LATER
        current.say_hello()
        deliver_rounds([current])
        until_s = time.monotonic() + PATIENCE_S
        while f"not training: {reason}" not in log.read_text():
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    assert run.result().run.state == "finished"
    assert log.read_text().count("upgrade sparsyedge") == 1
