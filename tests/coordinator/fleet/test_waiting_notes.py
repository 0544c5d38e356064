"""Who hears what a run waits for, and how often: rounds with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.clockwork import PLAN, Run

from sparsyedge.coordinator.fleet.activities import Activities
from sparsyedge.coordinator.fleet.live_file import LiveFile
from sparsyedge.coordinator.fleet.waiting_notes import CHANGE_S, REMIND_S, WaitingNotes
from sparsyedge.coordinator.record.live import LiveReader, Present
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.situation import Situation
from sparsyedge.coordinator.rounds.events import DeviceOffline, DeviceOnline
from sparsyedge.edge.protocol.channel import Health


class Listener(SilentObserver):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def waiting(self, situation: Situation) -> None:
        self.sentences.append(situation.sentence)


class Scene:
    """A run, its notes and who listens to them."""

    def __init__(self, live: LiveFile | None = None) -> None:
        self.run = Run(replace(PLAN, deadline_s=10_000.0))
        self.listener = Listener()
        self.health = Health()
        self.notes = WaitingNotes(
            self.listener,
            Activities(clock=self.clock),
            clock=self.clock,
            live=live,
            health=lambda: self.health,
        )

    def clock(self) -> float:
        return self.run.now_s

    def tick(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.run.now_s += 1.0
            self.notes.remind(self.run.state, self.run.now_s)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # The fake clock ticks faster than the live record may be written.
    monkeypatch.setattr("sparsyedge.coordinator.fleet.waiting_notes.SHARE", 1e9)
    with closing(LiveFile(tmp_path)) as live:
        yield Scene(live)


def shown(run_dir: Path) -> Present:
    reader = LiveReader.open(run_dir)
    assert reader is not None
    with closing(reader):
        present = reader.present()
    assert present is not None
    return present


def test_a_round_that_cannot_open_says_so_when_devices_come_and_once_a_minute(scene: Scene) -> None:
    scene.notes.tell(scene.run.state)
    for device in ("a", "b"):
        scene.run.online(device)
        scene.notes.mark()
    scene.notes.settle(scene.run.state)
    assert scene.listener.sentences == [
        "round 1 waits for 3 more devices: 0 of 3 are ready",
        "round 1 waits for 1 more device: 2 of 3 are ready",
    ]
    scene.tick(2 * REMIND_S)
    assert len(scene.listener.sentences) == 4


def test_what_did_not_change_is_not_said_again(scene: Scene) -> None:
    scene.run.online("a")
    scene.notes.tell(scene.run.state)
    for _ in range(10):
        scene.run.feed(DeviceOnline("a", "again"))
        scene.notes.mark()
        scene.notes.settle(scene.run.state)
    assert len(scene.listener.sentences) == 1


def test_members_at_work_are_worth_a_line_a_minute(scene: Scene) -> None:
    scene.run.online("a", "b", "c")
    scene.notes.restart()
    scene.tick(3 * REMIND_S + 1)
    assert len(scene.listener.sentences) == 3


def test_a_member_that_leaves_is_worth_a_line_soon_but_a_flapping_one_is_not_worth_many(scene: Scene) -> None:
    scene.run.online("a", "b", "c")
    scene.notes.restart()
    scene.tick(CHANGE_S)
    scene.run.feed(DeviceOffline("b", "boot"))
    scene.tick(1)
    assert len(scene.listener.sentences) == 1
    assert "b (offline for 1 s; not waited for after" in scene.listener.sentences[0]
    scene.run.feed(DeviceOnline("b", "boot"))
    scene.tick(CHANGE_S)
    assert len(scene.listener.sentences) == 1, "it is back"
    scene.run.feed(DeviceOffline("b", "boot"))
    scene.tick(CHANGE_S)
    assert len(scene.listener.sentences) == 2, "it left again"
    for _ in range(20):
        scene.run.feed(DeviceOnline("b", "boot"))
        scene.tick(1)
        scene.run.feed(DeviceOffline("b", "boot"))
        scene.tick(1)
    assert len(scene.listener.sentences) <= 2 + 40 / CHANGE_S


def test_a_broker_that_is_gone_is_what_the_coordinator_waits_for(scene: Scene, tmp_path: Path) -> None:
    scene.run.online("a", "b", "c")
    scene.health = Health(17, "broker:8883", 360.0)
    scene.tick(CHANGE_S)
    (sentence,) = scene.listener.sentences
    assert sentence.startswith("the coordinator waits for the broker at broker:8883, gone for 6 min; round 1 waits for")
    present = shown(tmp_path)
    assert present.sentence.startswith("the coordinator waits for the broker at broker:8883")
    assert present.inbox_messages == 17


def test_without_a_live_record_nothing_is_looked_at_before_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.run.online("a", "b", "c")
    monkeypatch.setattr(
        "sparsyedge.coordinator.fleet.waiting_notes.situation_of", lambda *_, **__: pytest.fail("nobody listens")
    )
    scene.tick(REMIND_S - 1)
    scene.notes.show(scene.run.state)
    scene.notes.say("nobody reads this")


def test_the_live_record_has_the_figures_of_the_round(scene: Scene, tmp_path: Path) -> None:
    scene.run.online("a", "b", "c")
    scene.run.deliver("a")
    scene.notes.show(scene.run.state)
    present = shown(tmp_path)
    assert (present.stage, present.round, present.online, present.accepted, present.cohort) == ("open", 1, 3, 1, 3)
    assert (present.uploads, present.offers_waiting) == (0, 0)
    assert present.until is not None
    assert present.until > present.at
    scene.run.deliver("b")
    scene.run.deliver("c")
    scene.notes.show(scene.run.state)
    assert (shown(tmp_path).stage, shown(tmp_path).accepted) == ("closing", 3)
