"""A run continues past its end when its `rounds` change, over a real broker."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from fixtures.clockwork import FIRST, PLAN, SECOND, Run
from fixtures.dense_way import average
from fixtures.scripted_fleet import FakeDevice, Fleet, answer

from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.fleet.leader import Leader
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import RunSummary, Stretch
from sparsyedge.coordinator.rounds.events import ModelReady
from sparsyedge.coordinator.rounds.progress import Progress
from sparsyedge.coordinator.rounds.stages import Open, Waiting
from sparsyedge.coordinator.rounds.state_machine import restore
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import model_id

pytestmark = pytest.mark.mosquitto

RATE = LearningRateConfig(start=0.4, end=0.1)


class Notes(SilentObserver):
    """Keeps the notes for the person who started the run."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str) -> None:
        self.sentences.append(sentence)


class Died(Exception):
    """Simulates SIGKILL."""


def play(fleet: Fleet, device: FakeDevice, *rounds: int, **changes: object) -> RunSummary:
    """Start the coordinator and deliver the device's updates for these rounds, which end the run."""
    device.task = None
    run = fleet.start(None, **changes)
    for number in rounds:
        device.deliver(device.until_round(number))
    return run.result()


@pytest.fixture
def device(fleet: Fleet) -> FakeDevice:
    """The one device of a run that has finished after two rounds."""
    (device,) = fleet.join("d1")
    summary = play(fleet, device, 1, 2, rounds=2, cohort_size=1, learning_rate=RATE)
    assert summary.run.state == "finished"
    return device


def test_a_finished_run_goes_on_from_its_last_model(fleet: Fleet, device: FakeDevice) -> None:
    delivered = sha256_file(fleet.config.run_path / "model.onnx")
    last = model_id(average([(10, answer("d1", 2, fleet.initial))]))
    device.task = None
    run = fleet.start(rounds=4)
    task = device.until_round(3)
    assert (task.rounds, task.model_id) == (4, last)
    assert model_id(device.download(task)) == last
    device.deliver(task)
    device.deliver(device.until_round(4))
    summary = run.result()
    assert (summary.run.state, summary.run.rounds, len(summary.rounds)) == ("finished", 4, 4)
    assert summary.run.model_id == model_id(average([(10, answer("d1", 4, fleet.initial))]))
    # model.onnx is the new one.
    assert summary.run.model_sha256 == sha256_file(fleet.config.run_path / "model.onnx") != delivered
    assert summary.stretches == (Stretch(first_round=1, rounds=2), Stretch(first_round=3, rounds=4))


def test_rates_of_later_rounds_are_those_of_the_new_number_and_said_beforehand(
    fleet: Fleet, device: FakeDevice
) -> None:
    fleet.observer = notes = Notes()
    summary = play(fleet, device, 3, 4, rounds=4)
    rates = [record.learning_rate for record in summary.rounds]
    assert rates == pytest.approx([0.2, 0.1, 0.4 * 0.25**0.75, 0.1])
    assert notes.sentences == [
        "run r1 has 4 rounds from now on, not 2; 2 are closed",
        "learning rate: 0.1 in round 2, 0.1414 in round 3, 0.1 in round 4",
        "it rises, as the schedule covers 4 rounds now; hold it with start = end = 0.1",
    ]


def test_rates_may_change_together_with_the_rounds(fleet: Fleet, device: FakeDevice) -> None:
    fleet.observer = notes = Notes()
    flat = LearningRateConfig(start=0.1, end=0.1)
    summary = play(fleet, device, 3, rounds=3, learning_rate=flat)
    assert summary.rounds[-1].learning_rate == 0.1
    assert notes.sentences[1:] == ["learning rate: 0.1 in round 2, 0.1 in round 3, 0.1 in round 3"]


def test_a_run_that_was_stopped_may_have_fewer_rounds_but_not_fewer_than_it_closed(fleet: Fleet) -> None:
    (device,) = fleet.join("d1")
    run = fleet.start(rounds=9, cohort_size=1)
    for number in (1, 2):
        device.deliver(device.until_round(number))
    device.until_round(3)
    run.coordinator.interrupt()
    run.result()
    for rounds in (1, 2):
        with pytest.raises(
            RunError, match=rf"key `rounds` has value {rounds}, and run r1 .* 2 rounds; allowed are 3 and more"
        ):
            fleet.start(rounds=rounds).result()
    assert len(play(fleet, device, 3, rounds=3).rounds) == 3


def test_a_round_that_is_open_keeps_the_rate_that_it_was_announced_with(fleet: Fleet) -> None:
    (device,) = fleet.join("d1")
    run = fleet.start(rounds=2, cohort_size=1, learning_rate=RATE)
    announced = device.until_round(1)
    run.coordinator.interrupt()
    run.result()
    fleet.observer = notes = Notes()
    device.task = None
    run = fleet.start(rounds=4)
    again = device.until_round(1)
    assert (again.learning_rate, again.rounds) == (announced.learning_rate, 4)
    device.deliver(again)
    assert device.until_round(2).learning_rate == pytest.approx(0.2)
    run.coordinator.interrupt()
    assert [record.learning_rate for record in run.result().rounds] == [announced.learning_rate]
    assert "learning rate: 0.2 in round 1, 0.2 in round 2, 0.1 in round 4" in notes.sentences


def test_a_coordinator_that_dies_before_the_next_round_has_lost_nothing(
    fleet: Fleet, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Leader, "lead", die)
        with pytest.raises(Died):
            fleet.start(rounds=3).result()
    with closing(fleet.store()) as store:
        run = store.run()
        assert (run.state, run.rounds, store.progress().closed_round) == ("running", 3, 2)
        assert store.progress().first_round == 3
    # Only the config asks for another round, so a restart is enough.
    summary = play(fleet, device, 3)
    assert (summary.run.state, len(summary.rounds)) == ("finished", 3)
    assert summary.run.model_id == model_id(average([(10, answer("d1", 3, fleet.initial))]))


@pytest.mark.parametrize(("closed", "expected"), [(2, "waits for the fleet"), (3, "opens with who is there")])
def test_the_first_round_after_the_end_waits_for_the_fleet_as_round_1_does(closed: int, expected: str) -> None:
    plan = replace(PLAN, rounds=4, min_devices=4, first_round=3)
    progress = Progress(closed_round=closed, model_id=SECOND, base_model_id=FIRST, closed_accepted={}, open=None)
    run = Run(plan)
    run.state = restore(plan, SECOND, progress, 0.0)
    run.feed(ModelReady(SECOND))
    run.online("d1", "d2", "d3")
    assert isinstance(run.state.stage, Waiting if expected == "waits for the fleet" else Open)
    run.online("d4")
    assert isinstance(run.state.stage, Open)


def test_status_says_since_when_a_run_has_more_rounds(
    fleet: Fleet, device: FakeDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    play(fleet, device, 3, rounds=3)
    assert main(["status", str(fleet.config.run_path)]) == 0
    printed = capsys.readouterr().out
    assert "run r1 of fleet lab: finished, 3 of 3 rounds closed\n" in printed
    assert "from round 3 on: 3 rounds in all, planned were 2\n" in printed


def test_seed_and_rounds_do_not_change_together(fleet: Fleet, device: FakeDevice) -> None:
    with pytest.raises(RunError, match="was begun with `seed` = 1337, the config now says 5"):
        fleet.start(rounds=3, seed=5).result()
