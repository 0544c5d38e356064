"""The rollout of a release, event by event, without a broker."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from sparsyedge.coordinator.rollout.plan import (
    Event,
    Giving,
    Halt,
    Progress,
    Return,
    Rollout,
    Seen,
    Tick,
    advance,
    unreached,
)
from sparsyedge.edge.protocol.messages import DeviceStatus, UpgradeStatus

BUNDLE = "ab" * 32
LIMIT_S = 100.0


class Played:
    """A rollout over devices that say what the test wants."""

    def __init__(self, *devices: str, canaries: int = 1, named: tuple[str, ...] = ()) -> None:
        self.now_s = 1000.0
        self.given: list[Giving] = []
        self.rollout = Rollout(
            fleet="lab",
            bundle=BUNDLE,
            software="2.0",
            canaries=canaries,
            named=named,
            limit_s=LIMIT_S,
            devices={device: Progress() for device in devices},
        )
        for device in devices:
            self.says(device, "waiting", running="")

    def feed(self, event: Event) -> list[Giving]:
        self.rollout, given = advance(self.rollout, event, self.now_s)
        self.given += given
        return given

    def says(self, device: str, stage: str, *, running: str = "", reason: str = "") -> list[Giving]:
        order = self.rollout.devices[device].serial
        upgrade = UpgradeStatus(stage=stage, order=order, bundle=BUNDLE, running=running, reason=reason)
        return self.feed(Seen(device, status(upgrade)))

    def upgrades(self, *devices: str) -> None:
        for device in devices:
            assert self.says(device, "trial", running=BUNDLE) == [Giving(device, "keep")]
            self.says(device, "kept", running=BUNDLE)

    def tick(self) -> list[Giving]:
        return self.feed(Tick())

    def wave(self) -> list[str]:
        given = self.tick()
        assert {each.action for each in given} <= {"install"}
        return [each.device for each in given]


def status(upgrade: UpgradeStatus | None = None, **changes: str) -> DeviceStatus:
    online = DeviceStatus(state="online", boot_id="1", software="sparsyedge 1.0", upgrade=upgrade or UNSET)
    return online if not changes else DeviceStatus(state="offline", boot_id="1")


def test_canaries_go_first_and_waves_double_until_all_run_it() -> None:
    played = Played(*(f"pi-{number}" for number in range(8)))
    sizes = []
    while played.rollout.state == "running":
        wave = played.wave()
        sizes.append(len(wave))
        assert played.tick() == []
        played.upgrades(*wave)
    assert sizes == [1, 2, 4, 1, 0]
    assert played.rollout.state == "done"
    assert all(each.is_kept for each in played.rollout.devices.values())


def test_named_canaries_go_first() -> None:
    played = Played("a", "b", "c", "d", named=("d", "b"))
    assert played.wave() == ["d", "b"]


def test_drawn_canaries_are_the_same_for_one_release_and_differ_between_releases() -> None:
    devices = [f"pi-{number}" for number in range(20)]
    first, again, other = (Played(*order, canaries=2) for order in (devices, devices[::-1], devices))
    other.rollout = replace(other.rollout, bundle="cd" * 32)
    drawn = first.wave()
    assert again.wave() == drawn
    assert other.wave() != drawn


@pytest.mark.parametrize("stage", ["refused", "returned"])
def test_a_failure_halts_the_rollout_with_the_devices_reason(stage: str) -> None:
    played = Played("a", "b", "c", canaries=2)
    failed, other = played.wave()
    played.says(failed, stage, reason="too large for the disk")
    assert played.tick() == [Giving(other, "halt")]
    assert played.rollout.state == "halted"
    assert played.rollout.reason == f"{failed} failed: too large for the disk"
    assert played.tick() == []


def test_a_device_on_trial_goes_back_when_another_one_fails() -> None:
    played = Played("a", "b", canaries=2)
    failed, other = played.wave()
    played.says(other, "trial")  # not yet on the new bundle, so it is not acknowledged
    played.says(failed, "refused", reason="no")
    assert played.tick() == [Giving(other, "return")]


def test_a_device_that_falls_silent_is_lost_after_the_limit() -> None:
    played = Played("a", "b")
    (canary,) = played.wave()
    played.says(canary, "downloading")
    played.feed(Seen(canary, status(state="offline")))
    played.now_s += LIMIT_S - 1
    assert played.tick() == []
    played.now_s += 2
    played.tick()
    assert played.rollout.state == "halted"
    assert f"{canary} failed: it did not finish within 100 s: it went offline (downloading)" in played.rollout.reason


def test_what_a_device_said_about_an_earlier_order_does_not_count() -> None:
    played = Played("a")
    old = UpgradeStatus(stage="refused", order=3, bundle=BUNDLE, reason="that was then")
    played.feed(Seen("a", status(old)))
    assert played.wave() == ["a"]
    played.feed(Seen("a", status(old)))
    assert played.tick() == []
    assert played.rollout.state == "running"


def test_devices_that_cannot_be_upgraded_are_left_out_with_the_reason() -> None:
    played = Played("old", "fixed", "able")
    played.feed(Seen("old", status()))
    played.says("fixed", "fixed", reason="not started by the launcher")
    assert played.wave() == ["able"]
    played.upgrades("able")
    played.tick()
    assert played.rollout.state == "done"
    assert "cannot be upgraded over the air" in played.rollout.devices["old"].reason
    assert played.rollout.devices["fixed"].reason == "not started by the launcher"


def test_a_device_that_was_away_is_named_and_gets_its_turn_when_the_rollout_goes_on() -> None:
    played = Played("a", "b")
    played.feed(Seen("b", status(state="offline")))
    played.upgrades(*played.wave())
    played.tick()
    assert played.rollout.state == "done"
    assert unreached(played.rollout) == ["b"]
    played.rollout = replace(played.rollout, state="running")
    played.says("b", "waiting")
    assert played.wave() == ["b"]


def test_an_update_accepted_in_a_round_is_as_good_as_an_acknowledgement() -> None:
    played = Played("a")
    played.wave()
    assert played.says("a", "kept", running=BUNDLE) == []
    played.tick()
    assert played.rollout.state == "done"


def test_halting_by_hand_stops_what_is_under_way() -> None:
    played = Played("a", "b")
    (canary,) = played.wave()
    assert played.feed(Halt()) == [Giving(canary, "halt")]
    assert played.rollout.reason == "halted by the operator"


def test_a_rollback_sends_back_all_that_run_it_also_those_that_come_later() -> None:
    played = Played("a", "b", "c", canaries=2)
    wave = played.wave()
    played.upgrades(*wave)
    late, present = wave
    played.feed(Seen(late, status(state="offline")))
    assert {each.device for each in played.feed(Return()) if each.action == "return"} == set(wave)
    assert played.tick() == []
    played.says(present, "returned")
    played.tick()
    assert played.rollout.state == "returned"
    assert unreached(played.rollout) == [late]


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_rollback_waits_for_a_device_that_restarts_and_has_perhaps_not_been_heard_before(is_heard: bool) -> None:
    played = Played("a")
    played.upgrades(*played.wave())
    played.feed(Return())
    if is_heard:
        played.says("a", "returned", running=BUNDLE, reason="as ordered")
    played.feed(Seen("a", status(state="offline")))
    played.tick()
    states = [played.rollout.state]
    played.says("a", "returned", reason="as ordered")
    played.tick()
    assert [*states, played.rollout.state] == ["returning", "returned"]
    assert unreached(played.rollout) == []


def test_a_rollback_does_not_wait_for_ever_for_a_device_that_went_offline() -> None:
    played = Played("a")
    played.upgrades(*played.wave())
    played.feed(Return())
    played.feed(Seen("a", status(state="offline")))
    played.now_s += LIMIT_S + 1
    played.tick()
    assert played.rollout.state == "returned"
    assert "did not finish within" in played.rollout.devices["a"].reason


def test_a_device_that_cannot_return_does_not_keep_the_rollback_waiting() -> None:
    played = Played("a")
    played.upgrades(*played.wave())
    played.feed(Return())
    played.says("a", "refused", running=BUNDLE, reason="there is nothing to return to")
    played.tick()
    assert played.rollout.state == "returned"
    assert played.rollout.devices["a"].reason == "there is nothing to return to"


def test_serials_of_orders_only_grow_even_if_the_clock_is_set_back() -> None:
    played = Played("a", "b")
    played.upgrades(*played.wave())
    before = played.rollout.last_serial
    played.now_s = 5.0
    played.wave()
    assert played.rollout.last_serial > before
