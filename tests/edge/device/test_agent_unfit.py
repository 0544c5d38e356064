"""Every reason for which a device does not train reaches the coordinator, in its status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fixtures.fake_coordinator import TOPICS, Coordinator, FakeSession, frame_of, manifest, round_task

from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.device import agent as agent_module
from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device import fitness as fitness_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import DeviceStatus, Report, decode, encode
from sparsyedge.edge.text import MAX_TEXT, one_line
from sparsyedge.edge.training import session_holder as holder_module

MakeAgent = Callable[..., Agent]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "TICK_S", 0.01)


def last_status(coordinator: Coordinator) -> DeviceStatus:
    statuses = [decode(payload, DeviceStatus) for payload in coordinator.sent("status")]
    return next(status for status in reversed(statuses) if status.unfit)


def finish_when_unfit(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the run as soon as the device has said why it does not train."""
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, **options: Any) -> None:
        publish(topic, payload, **options)
        if topic == TOPICS.status("pi-01") and decode(payload, DeviceStatus).unfit:
            coordinator.announce(round_task(state="finished"))

    monkeypatch.setattr(coordinator, "publish", watched)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 99}, "manifest version 99"),
        ({"ops_abi": 99}, "op library ABI 99"),
        ({"input_shape": [1, 8, 8]}, "samples of shape"),
        ({"classes": 3}, "data has label 3"),
        ({"files": {}}, "names no checkpoint file"),
    ],
)
def test_artifacts_that_do_not_suit_are_a_reason_for_the_whole_run(
    changes: dict[str, Any],
    sentence: str,
    coordinator: Coordinator,
    make_agent: MakeAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish_when_unfit(coordinator, monkeypatch)
    coordinator.announce(round_task(manifest=coordinator.offer_blob(manifest(**changes))))
    make_agent().run()
    status = last_status(coordinator)
    assert sentence in status.unfit
    assert (status.state, status.unfit_round) == ("online", 0)


def test_a_runtime_that_cannot_load_the_graphs_is_a_reason(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(artifacts: Artifacts, *, threads: int = 1) -> FakeSession:
        raise ArtifactError("onnxruntime 0.1 cannot load training.onnx:\n\tunsupported \x1b[31mmodel IR version")

    finish_when_unfit(coordinator, monkeypatch)
    agent = make_agent()
    monkeypatch.setattr(holder_module, "DenseSession", refuse)
    coordinator.announce(round_task())
    agent.run()
    expected = "onnxruntime 0.1 cannot load training.onnx: unsupported ?[31mmodel IR version"
    assert last_status(coordinator).unfit == expected


def test_a_full_disk_is_a_reason_for_the_round(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Cache, manifest: str, name: str, content: bytes) -> None:
        raise OSError(30, "Read-only file system")

    finish_when_unfit(coordinator, monkeypatch)
    monkeypatch.setattr(Cache, "keep_file", fail)
    coordinator.announce(round_task(round=2, rounds=3))
    make_agent().run()
    status = last_status(coordinator)
    assert "Read-only file system" in status.unfit
    assert status.unfit_round == 2


def test_a_device_that_failed_tries_the_round_again_while_it_is_open(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitness_module, "RETRY_FAILED_S", 0.05)
    FakeSession.losses = (float("nan"),)
    coordinator.announce(round_task())
    make_agent().run()
    assert "loss became nan" in last_status(coordinator).unfit
    assert [decode(payload, Report).round for payload in coordinator.sent("report")] == [1]


def test_a_model_that_cannot_be_fetched_becomes_a_reason_after_some_tries(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = frame_of({}, base_id="0" * 64)
    task = round_task(round=2, model_id="ab" * 32, model=coordinator.offer_blob(wrong))
    finish_when_unfit(coordinator, monkeypatch)
    coordinator.announce(task)
    make_agent().run()
    assert coordinator.fetched.count(task.model.sha256) == agent_module.PATIENT_RETRIES
    assert last_status(coordinator).unfit_round == 2


def test_a_task_that_cannot_be_read_is_a_reason_until_one_comes_that_can(
    coordinator: Coordinator, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = encode(round_task()).replace(b'"epochs":2', b'"epochs":"two"')
    coordinator.inbox.append(Received(TOPICS.round, broken, retained=True))
    agent = make_agent()
    for _ in range(3):
        agent._take_turn()
    assert "cannot read the coordinator's task" in last_status(coordinator).unfit
    assert "$.epochs" in last_status(coordinator).unfit
    coordinator.announce(round_task())
    agent.run()
    assert len(coordinator.sent("report")) == 1


@pytest.mark.parametrize(
    ("addition", "reason"),
    [
        (
            b'"protocol":2,"software":"sparsyedge 0.9.0"',
            "upgrade sparsyedge on pi-01: pi-01 runs test and reads protocol 1, "
            "the coordinator runs sparsyedge 0.9.0 and writes protocol 2",
        ),
        (
            b'"needs":["codec-int4"],"software":"sparsyedge 0.9.0"',
            "upgrade sparsyedge on pi-01: pi-01 runs test without `codec-int4`, "
            "the coordinator runs sparsyedge 0.9.0 and needs it",
        ),
    ],
)
def test_a_task_of_a_later_version_is_a_reason_that_says_whom_to_upgrade_and_is_logged_once(
    addition: bytes,
    reason: str,
    coordinator: Coordinator,
    make_agent: MakeAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The task's other fields may be unreadable, and every refresh repeats the task.
    newer = encode(round_task()).replace(b'"epochs":2', b'"epochs":{"least":2}')[:-1] + b"," + addition + b"}"
    agent = make_agent()
    for _ in range(3):
        coordinator.inbox.append(Received(TOPICS.round, newer, retained=True))
        agent._take_turn()
        agent._take_turn()
    assert last_status(coordinator).unfit == reason
    assert [record.getMessage() for record in caplog.records] == [f"not training: {reason}"]
    assert coordinator.sent("offer") == []
    coordinator.announce(round_task())
    agent.run()
    assert len(coordinator.sent("report")) == 1


def test_a_task_with_an_optional_field_of_a_later_version_is_done(
    coordinator: Coordinator, make_agent: MakeAgent
) -> None:
    newer = encode(round_task())[:-1] + b',"added_later":{"x":1}}'
    coordinator.inbox.append(Received(TOPICS.round, newer, retained=True))
    make_agent().run()
    assert len(coordinator.sent("report")) == 1
    assert decode(coordinator.sent("status")[0], DeviceStatus).speaks == OURS


def test_a_reason_travels_as_one_printable_line_of_bounded_length() -> None:
    assert one_line("a\n b\t\x00c") == "a b ?c"
    assert len(one_line("x" * 10_000)) == MAX_TEXT
