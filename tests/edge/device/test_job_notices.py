"""What a device says about its present job: little, rarely, and never in the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fixtures.fake_coordinator import round_task

from sparsyedge.edge.device.job_notices import EVERY_S, PHASE_S, USUAL_COHORT, JobNotices
from sparsyedge.edge.device.limits import Vitals
from sparsyedge.edge.protocol.messages import Progress, decode


class Broker:
    """Takes messages, or not; has a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.is_there = True
        self.payloads: list[bytes] = []
        self.asked = 0

    def tell(self, payload: bytes) -> bool:
        self.asked += 1
        if self.is_there:
            self.payloads.append(payload)
        return self.is_there

    def clock(self) -> float:
        return self.now_s

    @property
    def last(self) -> Progress:
        return decode(self.payloads[-1], Progress)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def notices(broker: Broker) -> JobNotices:
    vitals = Vitals(temperature_c=61.54321, battery_percent=None)
    return JobNotices(broker.tell, vitals=lambda: vitals, clock=broker.clock)


def train(notices: JobNotices, broker: Broker, *, steps: int, step_s: float) -> None:
    losses: list[float] = []
    for step in range(1, steps + 1):
        broker.now_s += step_s
        losses.append(1.0 / step)
        notices.note_step(step, steps, losses)
        notices.poll()


def test_a_job_is_told_by_run_round_phase_and_step(notices: JobNotices, broker: Broker) -> None:
    notices.begin(round_task(round=3))
    notices.note_phase("train")
    train(notices, broker, steps=30, step_s=1.0)
    last = broker.last
    assert (last.run, last.round, last.phase, last.steps) == ("demo", 3, "train", 30)
    assert last.step == 30
    assert last.temperature_c == 61.54
    assert isinstance(last.loss, float)
    assert last.loss == pytest.approx(sum(1 / step for step in range(11, 31)) / 20, rel=1e-3)
    assert isinstance(last.battery_percent, type(Progress(run="r", round=1, phase="x").loss)), "no battery, no figure"


def test_fast_steps_are_told_every_few_seconds(notices: JobNotices, broker: Broker) -> None:
    notices.begin(round_task())
    notices.note_phase("train")
    train(notices, broker, steps=800, step_s=0.125)
    assert len(broker.payloads) == 1 + 100 / EVERY_S


def test_a_large_cohort_sends_no_more_in_all(notices: JobNotices, broker: Broker) -> None:
    notices.begin(round_task(cohort=tuple(f"d{number}" for number in range(4 * USUAL_COHORT))))
    notices.note_phase("train")
    train(notices, broker, steps=800, step_s=0.125)
    assert len(broker.payloads) == 1 + 100 / EVERY_S / 4


def test_a_new_phase_is_told_sooner_but_not_at_once(notices: JobNotices, broker: Broker) -> None:
    notices.begin(round_task())
    notices.note_phase("download")
    for phase in ("train", "prune", "encode", "upload"):
        notices.note_phase(phase)
    assert [decode(payload, Progress).phase for payload in broker.payloads] == ["download"]
    broker.now_s += PHASE_S
    notices.poll()
    assert broker.last.phase == "upload"
    broker.now_s += PHASE_S
    notices.poll()
    assert len(broker.payloads) == 2, "there is nothing new"


def test_the_end_of_a_job_clears_what_was_said_once(notices: JobNotices, broker: Broker) -> None:
    notices.begin(round_task())
    notices.note_phase("train")
    notices.end()
    broker.now_s += PHASE_S
    for _ in range(100):
        notices.poll()
        broker.now_s += 1.0
    assert len(broker.payloads) == 2
    assert broker.payloads[-1] == b""


def test_a_device_that_starts_clears_what_an_earlier_process_said(notices: JobNotices, broker: Broker) -> None:
    notices.poll()
    notices.poll()
    assert broker.payloads == [b""]


def test_a_device_that_leaves_clears_it_at_once(notices: JobNotices, broker: Broker) -> None:
    notices.begin(round_task())
    notices.note_phase("train")
    notices.end()
    notices.leave()
    assert broker.payloads[-1] == b""
    notices.leave()
    assert len(broker.payloads) == 2


def test_without_a_broker_it_is_tried_once_a_second_and_the_latest_word_goes_out(
    notices: JobNotices, broker: Broker
) -> None:
    broker.is_there = False
    notices.begin(round_task())
    notices.note_phase("train")
    train(notices, broker, steps=1000, step_s=0.01)
    assert broker.asked <= 11
    broker.is_there = True
    train(notices, broker, steps=2000, step_s=0.01)
    assert broker.last.steps == 2000


def test_silence_costs_a_step_nothing() -> None:
    def fail() -> float:
        raise AssertionError("nobody needs the time")

    silent: Callable[[], float] = fail
    notices = JobNotices(None, clock=silent)
    notices.begin(round_task())
    notices.note_phase("train")
    notices.note_step(1, 2, [1.0])
    notices.poll()
    notices.end()
    notices.leave()


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e300])
def test_a_figure_that_means_nothing_is_left_out(notices: JobNotices, broker: Broker, loss: float) -> None:
    notices.begin(round_task())
    notices.note_step(1, 2, [loss])
    notices.note_phase("train")
    assert broker.last.step == 1
    assert not isinstance(broker.last.loss, float)
