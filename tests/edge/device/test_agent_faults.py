"""What an agent does when messages, files or training go wrong."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_coordinator import (
    CHUNK,
    DEVICE,
    FILES,
    INITIAL,
    TOPICS,
    Coordinator,
    FakeSession,
    frame_of,
    identity,
    manifest,
    received_state,
    round_task,
)

from sparsyedge.edge.device import agent as agent_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Accepted, Offer, Reply, Report, decode, encode

pytestmark = pytest.mark.timeout(300)


def test_lost_chunk_is_asked_for_again(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    lost = blob_of(FILES["training"], chunk_bytes=CHUNK)
    coordinator.lost_topics = {TOPICS.chunk(lost.sha256, 2)}
    coordinator.announce(round_task())
    make_agent().run()
    assert coordinator.fetched.count(lost.sha256) == 2
    assert len(coordinator.sent("report")) == 1


def test_chunks_lost_on_the_way_up_are_sent_again(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    coordinator.lost_uploads = {0}
    coordinator.announce(round_task())
    make_agent().run()
    chunks = coordinator.uploaded_chunks()
    assert (chunks.count(0), chunks.count(1)) == (2, 1)
    assert len(coordinator.sent("report")) == 1


def test_offer_is_repeated_while_the_coordinator_is_silent(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    silences = iter([None, None])

    def verdict(offer: Offer) -> Reply | None:
        return next(silences, Accepted(**identity(offer)))

    coordinator.verdict = verdict
    coordinator.announce(round_task())
    make_agent().run()
    assert len(coordinator.sent("offer")) >= 4
    assert len(set(coordinator.sent("offer"))) == 1


def test_answers_to_another_offer_are_ignored(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    stranger = Accepted(run="demo", round=1, update="0" * 64)
    coordinator.inbox.append(Received(TOPICS.reply(DEVICE), encode(stranger), retained=False))
    coordinator.announce(round_task())
    make_agent().run()
    assert received_state(coordinator)


def test_model_that_is_not_the_announced_one_is_refused_and_tried_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = frame_of(INITIAL, base_id="0" * 64)
    task = round_task(round=2, model_id="ab" * 32, model=coordinator.offer_blob(wrong))
    subscribe = coordinator.subscribe

    def finish_at_the_third_try(pattern: str, *, as_published: bool = False, latest: bool = False) -> None:
        subscribe(pattern)
        if coordinator.fetched.count(task.model.sha256) == 3:
            coordinator.announce(round_task(state="finished"))

    coordinator.subscribe = finish_at_the_third_try  # type: ignore[method-assign]
    coordinator.announce(task)
    make_agent().run()
    assert "the frame announced as model abababababab holds model" in caplog.text
    assert "trying again" in caplog.text
    assert FakeSession.steps == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 99}, "manifest version 99"),
        ({"ops_abi": 99}, "op library ABI 99"),
        ({"input_shape": [1, 8, 8]}, "samples of shape"),
        ({"classes": 3}, "data has label 3"),
    ],
)
def test_artifacts_that_do_not_suit_are_one_line_in_the_log(
    changes: dict[str, Any],
    sentence: str,
    coordinator: Coordinator,
    make_agent: Callable[..., Agent],
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = round_task(manifest=coordinator.offer_blob(manifest(**changes)))
    agent = make_agent()

    class FinishWhenIdle(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "taking no part" in record.getMessage():
                coordinator.announce(round_task(state="finished"))

    handler = FinishWhenIdle()
    agent_module.log.addHandler(handler)
    try:
        coordinator.announce(task)
        agent.run()
    finally:
        agent_module.log.removeHandler(handler)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert sentence in errors[0].getMessage()
    assert errors[0].exc_info is None
    assert FakeSession.steps == 0


def test_loss_that_is_not_finite_costs_the_round_and_not_the_device(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    FakeSession.losses = (float("nan"),)
    FakeSession.on_step = lambda: coordinator.announce(round_task(round=2)) if FakeSession.steps == 1 else None
    coordinator.announce(round_task())
    make_agent().run()
    assert "loss became nan" in caplog.text
    assert [decode(payload, Report).round for payload in coordinator.sent("report")] == [2]


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        (TOPICS.round, b"\xff\xfe"),
        (TOPICS.round, b'{"run": "x"}'),
        (TOPICS.reply(DEVICE), b"[]"),
        (TOPICS.round + "/x", b""),
        (TOPICS.chunk("0" * 64, 1), b"stray"),
    ],
)
def test_nonsense_is_ignored(
    topic: str, payload: bytes, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.inbox.append(Received(topic, payload, retained=False))
    coordinator.announce(round_task())
    make_agent().run()
    assert len(coordinator.sent("report")) == 1


@pytest.mark.parametrize("index", ["x", "-1", "9" * 5000, "99", ""])
def test_chunk_with_a_wrong_number_is_ignored(
    index: str, coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    blob = blob_of(FILES["training"], chunk_bytes=CHUNK)
    coordinator.retained = {f"{TOPICS.root}/blob/{blob.sha256}/{index}": b"evil", **coordinator.retained}
    coordinator.announce(round_task())
    make_agent().run()
    assert "ignored a message" in caplog.text
    assert len(coordinator.sent("report")) == 1


def test_damaged_files_on_disk_are_fetched_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    folder = Cache(tmp_path).folder(round_task().manifest.sha256)
    (folder / "training.bin").write_bytes(b"rust")
    coordinator.fetched.clear()
    coordinator.assembly = None
    coordinator.announce(round_task(seed=2))
    make_agent().run()
    assert coordinator.fetched == [hashlib.sha256(FILES["training"]).hexdigest()]
    assert "training.bin does not match its hash" in caplog.text


def test_damaged_update_on_disk_is_made_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    (tmp_path / "outbox" / "update.outbox").write_bytes(b"rust")
    coordinator.assembly = None
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 12


def test_full_disk_costs_the_round_and_not_the_device(
    coordinator: Coordinator,
    make_agent: Callable[..., Agent],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: Cache, manifest: str, name: str, content: bytes) -> None:
        coordinator.announce(round_task(state="finished"))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cache, "keep_file", fail)
    coordinator.announce(round_task())
    make_agent().run()
    assert "No space left on device; trying again in 60 s if the round is still open" in caplog.text
