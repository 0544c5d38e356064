"""What a coordinator notices about a device beyond its messages, with a fake clock."""

from __future__ import annotations

from sparsyedge.coordinator.fleet.alarms import AGAIN_S, TWINS_S, Alarms
from sparsyedge.edge.protocol.messages import DeviceStatus


def online(boot_id: str, alarm: str = "") -> DeviceStatus:
    return DeviceStatus(state="online", boot_id=boot_id, alarm=alarm)


def test_a_start_that_comes_back_after_a_later_one_is_a_second_device() -> None:
    alarms = Alarms()
    assert alarms.note("pi-07", online("a" * 32), 0.0) is None
    assert alarms.note("pi-07", online("b" * 32), 1.0) is None
    alarm = alarms.note("pi-07", online("a" * 32), 2.0)
    assert alarm is not None
    assert "connected twice with one identity (boot ids aaaaaaaaaaaa and bbbbbbbbbbbb)" in alarm
    assert "revoke pi-07" in alarm


def test_it_is_said_once_while_they_take_turns_and_forgotten_when_they_stop() -> None:
    alarms = Alarms()
    said = [alarms.note("pi-07", online("ab"[turn % 2]), float(turn)) for turn in range(300)]
    assert sum(alarm is not None for alarm in said) == 1
    assert alarms.note("pi-07", online("b"), 300.0 + TWINS_S) == ""


def test_restarts_and_repeated_words_are_no_alarm() -> None:
    alarms = Alarms()
    for turn in range(20):
        for _ in range(3):
            assert alarms.note("pi-07", online(f"boot {turn}"), float(turn)) is None
    # The last will of an earlier start, which the broker sends late.
    assert alarms.note("pi-07", DeviceStatus(state="offline", boot_id="boot 18"), 30.0) is None


def test_devices_do_not_share_their_starts() -> None:
    alarms = Alarms()
    for device in ("pi-01", "pi-02"):
        for boot_id in ("a", "b"):
            assert alarms.note(device, online(boot_id), 0.0) is None


def test_what_a_device_says_of_forged_tasks_is_passed_on_once_a_minute() -> None:
    alarms = Alarms()
    assert alarms.note("pi-07", online("a", "refused 1 forged"), 0.0) == "refused 1 forged"
    for turn in range(1, 59):
        assert alarms.note("pi-07", online("a", f"refused {turn + 1} forged"), float(turn)) is None
    assert alarms.note("pi-07", online("a", "refused 99 forged"), AGAIN_S) == "refused 99 forged"
