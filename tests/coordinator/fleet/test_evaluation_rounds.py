"""Evaluation rounds over a real broker: who is asked, what counts, and that nobody trains or mistakes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from threading import Thread

import msgspec
import pytest
from fixtures.scripted_fleet import PATIENCE_S, TOPICS, FakeDevice, Fleet, report_of
from msgspec import UNSET

from sparsyedge.coordinator.fleet import leader as leader_module
from sparsyedge.coordinator.record.device_evaluations import EvaluationRound
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.service import Coordinator
from sparsyedge.edge.compatibility import DEVICE_EVALUATION, OURS, Speaks
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.messages import Accepted, LocalEvaluation, Report, RoundTask, Score, encode

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(180)]


def join(fleet: Fleet, *names: str) -> list[FakeDevice]:
    """Devices that know about evaluation rounds."""
    devices = fleet.join(*names)
    for device in devices:
        device.speaks = OURS
        device.say_hello()
    return devices


def until_evaluation(device: FakeDevice) -> RoundTask:
    device.until(lambda: device.task is not None and device.task.evaluation is not UNSET)
    assert device.task is not None
    return device.task


def finding(task: RoundTask, *, accuracy: float = 0.5, samples: int = 10) -> Report:
    evaluated = LocalEvaluation(samples=samples, before=Score(loss=1.0, accuracy=accuracy))
    return msgspec.structs.replace(report_of(task), evaluated=evaluated, evaluation=task.evaluation)


def tell(device: FakeDevice, report: Report) -> None:
    device.link.publish(TOPICS.report(device.name), encode(report))


def until_confirmed(device: FakeDevice, report: Report) -> None:
    name = hashlib.sha256(encode(report)).hexdigest()
    device.until(lambda: any(isinstance(reply, Accepted) and reply.update == name for reply in device.replies))


def coordinator_of(fleet: Fleet) -> Coordinator:
    """A coordinator for the fleet's run, after the one that led it."""
    return Coordinator(
        fleet.config,
        fleet.artifacts,
        initial=fleet.first,
        origin="",
        evaluate=lambda state: Evaluation(0.5, 1.0),
        observer=fleet.observer,
    )


def rounds_of(fleet: Fleet) -> tuple[EvaluationRound, ...]:
    with closing(fleet.store()) as store:
        return store.evaluation_rounds()


def test_an_evaluation_round_comes_between_two_rounds_and_the_run_goes_on_after_it(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2, min_devices=2)
    first, second = join(fleet, "d1", "d2")
    (old,) = fleet.join("d3")
    task = first.until_round(1)
    with closing(fleet.store()) as store:
        store.request_evaluation()
    for device in (first, second, old):
        if device.name in device.until_round(1).cohort:
            device.deliver(task)
    asked = until_evaluation(first)
    assert (asked.round, asked.cohort, asked.needs) == (1, ("d1", "d2"), (DEVICE_EVALUATION,))
    report = finding(asked, accuracy=0.25)
    tell(first, report)
    until_confirmed(first, report)
    tell(first, report)
    until_evaluation(second)
    tell(second, finding(asked, accuracy=0.75, samples=30))
    for device in (first, second, old):
        if device.name in device.until_round(2).cohort:
            device.deliver(device.until_round(2))
    assert run.result().run.state == "finished"
    (ended,) = rounds_of(fleet)
    assert (ended.round, ended.asked, ended.figures["eval_devices"]) == (1, 2, 2)
    assert ended.figures["eval_global_accuracy"] == pytest.approx((0.25 * 10 + 0.75 * 30) / 40)


def test_the_next_task_after_an_evaluation_round_needs_nothing_of_its_readers(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1, rounds=1)
    (device,) = join(fleet, "d1")
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        store.request_evaluation()
    device.deliver(task)
    tell(device, finding(until_evaluation(device)))
    device.until(lambda: device.task is not None and device.task.state == "finished")
    assert device.task is not None
    assert (device.task.needs, device.task.evaluation) == (UNSET, UNSET)
    assert run.result().run.state == "finished"
    assert rounds_of(fleet)[0].figures["eval_global_accuracy"] == 0.5, "the last round's request is taken up, too"


def test_a_device_that_leaves_or_becomes_unfit_is_not_waited_for(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=3, rounds=1, deadline_s=3600.0)
    stays, leaves, _ = join(fleet, "d1", "d2", "d3")
    tasks = [device.until_round(1) for device in fleet.devices]
    with closing(fleet.store()) as store:
        store.request_evaluation()
    for device, task in zip(fleet.devices, tasks, strict=True):
        device.deliver(task)
    asked = until_evaluation(stays)
    tell(stays, finding(asked))
    leaves.link.publish(TOPICS.status("d2"), b'{"state":"offline","boot_id":"b"}', retain=True)
    tell(fleet.devices[2], msgspec.structs.replace(finding(asked), evaluated=LocalEvaluation(samples=0)))
    assert run.result().run.state == "finished"
    (ended,) = rounds_of(fleet)
    assert (ended.asked, ended.figures["eval_devices"]) == (3, 1)


@pytest.mark.parametrize(
    "forged",
    [
        lambda report: msgspec.structs.replace(report, evaluation=99),
        lambda report: msgspec.structs.replace(report, run="other"),
        lambda report: msgspec.structs.replace(report, round=7),
        lambda report: msgspec.structs.replace(report, evaluated=UNSET),
    ],
    ids=["another evaluation", "another run", "another round", "no findings"],
)
def test_a_report_that_nobody_asked_for_is_refused_and_counted(
    fleet: Fleet, forged: Callable[[Report], Report]
) -> None:
    run = fleet.start(cohort_size=1, rounds=1)
    (device,) = join(fleet, "d1")
    (stranger,) = fleet.join("d9")
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        store.request_evaluation()
    device.deliver(task)
    asked = until_evaluation(device)
    tell(device, forged(finding(asked)))
    tell(stranger, finding(asked, accuracy=1.0, samples=10**9))
    report = finding(asked)
    tell(device, report)
    until_confirmed(device, report)
    assert run.result().run.state == "finished"
    assert rounds_of(fleet)[0].figures["eval_samples"] == 10
    reasons = fleet.refused()
    assert any("nobody asked for it" in reason for reason in reasons)


def test_a_fleet_of_older_devices_is_not_held_up(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.speaks = Speaks(protocol=OURS.protocol, manifest=OURS.manifest)
    device.say_hello()
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        store.request_evaluation()
    device.deliver(task)
    device.deliver(device.until_round(2))
    assert run.result().run.state == "finished"
    (ended,) = rounds_of(fleet)
    assert (ended.asked, ended.figures) == (0, {})


def test_the_model_of_a_run_that_is_over_is_evaluated_and_the_run_stays_as_it_was(
    fleet: Fleet,
) -> None:
    run = fleet.start(cohort_size=1, rounds=1)
    (device,) = join(fleet, "d1")
    device.deliver(device.until_round(1))
    before = run.result()
    again = coordinator_of(fleet)
    results: list[EvaluationRound] = []
    thread = Thread(target=lambda: results.append(again.evaluate()), daemon=True)
    thread.start()
    asked = until_evaluation(device)
    assert asked.model_id == before.run.model_id
    tell(device, finding(asked))
    thread.join(PATIENCE_S)
    assert results[0].figures["eval_global_accuracy"] == 0.5
    with closing(fleet.store()) as store:
        after = store.summary()
    assert after.run == before.run
    assert after.rounds == before.rounds


def test_an_evaluation_without_devices_says_so(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "GATHER_S", 0.2)
    run = fleet.start(cohort_size=1, rounds=1)
    (device,) = join(fleet, "d1")
    device.deliver(device.until_round(1))
    run.result()
    device.link.publish(TOPICS.status("d1"), b'{"state":"offline","boot_id":"b"}', retain=True)
    with pytest.raises(RunError, match="no device of fleet lab is online"):
        coordinator_of(fleet).evaluate()


def test_an_evaluation_round_whose_coordinator_died_ends_with_the_answers_that_are_in(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1, rounds=1)
    (device,) = join(fleet, "d1")
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        number = store.begin_evaluation(round_number=1, model_id="b" * 64, asked=2)
        store.add_evaluation(number, "d1", finding(msgspec.structs.replace(task, evaluation=number)), round_number=1)
    device.deliver(task)
    run.result()
    assert rounds_of(fleet)[0].ended_at is None
    again = coordinator_of(fleet)
    thread = Thread(target=again.evaluate, daemon=True)
    thread.start()
    tell(device, finding(until_evaluation(device)))
    thread.join(PATIENCE_S)
    first, second = rounds_of(fleet)
    assert first.ended_at is not None
    assert first.figures["eval_global_accuracy"] == 0.5
    assert second.number == number + 1
