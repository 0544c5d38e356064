"""Devices and the coordinator killed at every stage of an upgrade: in the end, all of them run a version that works."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.releases import NEVER_COMES_ONLINE, UpgradableFleet, add_release

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.faults import CRASH_VARIABLE, EXIT_CODE, ROLLOUT_CRASH_POINTS, UPGRADE_CRASH_POINTS

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

DEVICE = "pi-01"
LIMIT_S = 300.0


@pytest.fixture
def fleet(tmp_path: Path, secured: Authority) -> Iterator[UpgradableFleet]:
    fleet = UpgradableFleet(tmp_path, secured)
    fleet.add_device(DEVICE)
    try:
        yield fleet
    finally:
        fleet.end()


def join(fleet: UpgradableFleet, variables: dict[str, str] | None = None) -> None:
    """Start the device and wait until it has joined."""
    before = fleet.log(DEVICE).count("joined fleet")
    fleet.launch(DEVICE, variables)
    fleet.wait_until(lambda: fleet.log(DEVICE).count("joined fleet") > before, "the device")


def begin(fleet: UpgradableFleet, version: str, code: str = "") -> subprocess.Popen[bytes]:
    """Begin a rollout in a process of its own."""
    wheelhouse = add_release(fleet.folder / f"wheels-{version}", version, code)
    return fleet.start(
        f"rollout-{version}", "fleet", "update", "--wheelhouse", str(wheelhouse), "--dir", str(fleet.authority.folder)
    )


def test_a_device_killed_at_any_stage_goes_on_with_its_upgrade(fleet: UpgradableFleet) -> None:
    for number, point in enumerate(UPGRADE_CRASH_POINTS):
        version = f"9.{number}"
        join(fleet, {CRASH_VARIABLE: point})
        slot = fleet.current(DEVICE)
        rollout = begin(fleet, version)
        if point == "before-keep":
            # It dies at both starts of its trial, so it goes back.
            assert rollout.wait(LIMIT_S) == 1, fleet.log(f"rollout-{version}")
            assert fleet.current(DEVICE) == slot
            assert fleet.record(DEVICE)["stage"] == "returned"
        else:
            assert fleet.launchers[DEVICE].wait(LIMIT_S) == EXIT_CODE, point
            fleet.launch(DEVICE)
            assert rollout.wait(LIMIT_S) == 0, fleet.log(f"rollout-{version}")
            assert fleet.current(DEVICE) != slot
            assert not fleet.is_on_trial(DEVICE)
        fleet.kill(DEVICE)
        print(f"killed at {point}: {fleet.record(DEVICE)['stage']}")


def test_a_device_that_loses_power_while_pip_works_or_on_trial_ends_up_with_a_version_that_works(
    fleet: UpgradableFleet,
) -> None:
    for version, stage in (("9.1", "installing"), ("9.2", "checking"), ("9.3", "trial")):
        join(fleet)
        last = fleet.record(DEVICE).get("bundle")
        rollout = begin(fleet, version)
        fleet.wait_until(lambda last=last: fleet.record(DEVICE).get("bundle") != last, "the order")  # type: ignore[misc]
        fleet.wait_for_stage(DEVICE, stage, "kept")
        fleet.kill(DEVICE)
        fleet.launch(DEVICE)
        assert rollout.wait(LIMIT_S) == 0, fleet.log(f"rollout-{version}")
        fleet.kill(DEVICE)


def test_a_version_that_never_comes_online_is_given_up_by_the_launcher(fleet: UpgradableFleet) -> None:
    join(fleet, {"SPARSYEDGE_TRIAL_LIMIT_S": "5"})
    rollout = begin(fleet, "9.1", NEVER_COMES_ONLINE)
    assert rollout.wait(LIMIT_S) == 1
    assert "was not acknowledged by the coordinator within 5 s" in fleet.log("rollout-9.1")
    assert fleet.current(DEVICE) == "factory"


def test_a_coordinator_killed_at_any_stage_goes_on_with_its_rollout(fleet: UpgradableFleet) -> None:
    join(fleet)
    for number, crash in enumerate(f"{point}:{count}" for point in ROLLOUT_CRASH_POINTS for count in (1, 2, 4, 8)):
        version = f"9.{number}"
        wheelhouse = add_release(fleet.folder / f"wheels-{version}", version)
        fleet.fleet("update", "--wheelhouse", str(wheelhouse), crash_at=crash, code=EXIT_CODE)
        said = fleet.fleet("update")
        assert "done; 1 of 1 devices run it" in said, crash
        print(f"coordinator killed at {crash}: done")


def test_a_rollout_that_nobody_drives_any_more_can_be_halted(fleet: UpgradableFleet) -> None:
    join(fleet)
    wheelhouse = add_release(fleet.folder / "wheels", "9.1")
    fleet.fleet("update", "--wheelhouse", str(wheelhouse), crash_at="orders-given:2", code=EXIT_CODE)
    assert "not over" in fleet.fleet("update", "--wheelhouse", str(wheelhouse), code=2)
    assert "halted by the operator" in fleet.fleet("halt")
    fleet.wait_for_stage(DEVICE, "halted", "kept", "returned")
    assert "has halted" in fleet.fleet("update", code=2)
