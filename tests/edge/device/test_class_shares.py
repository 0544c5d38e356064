"""A device says which classes it has to runs that ask for it, and to no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.fake_coordinator import FILES, TOPICS, Coordinator, FakeSession, round_task, samples
from msgspec import UNSET

from sparsyedge.edge.compatibility import CLASS_SHARES
from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.class_shares import class_shares
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import DeviceStatus, decode

MakeAgent = Callable[..., Agent]
pytestmark = pytest.mark.timeout(60)
ALL_OF_CLASS_3 = (0, 0, 0, 100)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "TICK_S", 0.01)


def statuses(coordinator: Coordinator) -> list[DeviceStatus]:
    return [decode(payload, DeviceStatus) for payload in coordinator.sent("status")]


def finish_when(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, has: Callable[[DeviceStatus], Any]) -> None:
    """End the run, whose successor does not ask, as soon as a status is like this."""
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, **options: Any) -> None:
        publish(topic, payload, **options)
        if topic == TOPICS.status("pi-01") and has(decode(payload, DeviceStatus)):
            coordinator.announce(round_task(state="finished"))

    monkeypatch.setattr(coordinator, "publish", watched)


def test_shares_are_hundredths_and_no_class_that_is_there_is_lost() -> None:
    assert class_shares(np.array([0] * 999 + [2]), 4) == (100, 0, 1, 0)
    assert class_shares(np.array([1, 1, 2]), 3) == (0, 67, 34)


def test_a_member_tells_its_classes_before_it_trains(coordinator: Coordinator, make_agent: MakeAgent) -> None:
    told: list[object] = []
    agent = make_agent()
    FakeSession.on_step = lambda: told.append(statuses(coordinator)[-1].classes)
    coordinator.announce(round_task(needs=(CLASS_SHARES,)))
    agent.run()
    assert set(told) == {ALL_OF_CLASS_3}


def test_a_device_that_is_not_chosen_tells_its_classes_too_and_fetches_the_manifest_alone(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_when(coordinator, monkeypatch, lambda status: status.classes)
    task = round_task(cohort=("pi-02",), needs=(CLASS_SHARES,))
    coordinator.announce(task)
    make_agent().run()
    assert ALL_OF_CLASS_3 in [status.classes for status in statuses(coordinator)]
    assert set(coordinator.fetched) == {task.manifest.sha256}
    assert not {blob_of(content, chunk_bytes=1024).sha256 for content in FILES.values()} & set(coordinator.fetched)


def test_it_tells_nothing_to_a_run_that_does_not_ask(coordinator: Coordinator, make_agent: MakeAgent) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    assert coordinator.assembly is not None
    assert {status.classes for status in statuses(coordinator)} == {UNSET}


def test_it_stops_telling_when_the_next_run_does_not_ask(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, **options: Any) -> None:
        publish(topic, payload, **options)
        if topic != TOPICS.status("pi-01"):
            return
        status = decode(payload, DeviceStatus)
        if status.classes:
            coordinator.announce(round_task(run="next", cohort=("pi-02",)))
        elif any(each.classes for each in statuses(coordinator)) and status.state == "online":
            coordinator.announce(round_task(run="next", state="finished"))

    monkeypatch.setattr(coordinator, "publish", watched)
    coordinator.announce(round_task(cohort=("pi-02",), needs=(CLASS_SHARES,)))
    make_agent().run()
    said = [status.classes for status in statuses(coordinator) if status.state == "online"]
    assert said[0] is UNSET
    assert said[-1] is UNSET
    assert ALL_OF_CLASS_3 in said


def test_an_owner_may_forbid_it_and_the_device_says_so(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_when(coordinator, monkeypatch, lambda status: status.unfit)
    coordinator.announce(round_task(needs=(CLASS_SHARES,)))
    make_agent(local=LocalData(samples(), tells_classes=False)).run()
    unfit = next(status for status in statuses(coordinator) if status.unfit)
    assert unfit.unfit.startswith("run demo asks which classes this device has")
    assert "`data.tell_classes` is false" in unfit.unfit
    assert unfit.unfit_round == 0
    assert {status.classes for status in statuses(coordinator)} == {UNSET}
