"""The agent through its rounds, against a coordinator that lives in a fake link."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.fake_coordinator import (
    FILES,
    INITIAL,
    NO_BLOB,
    SAMPLES,
    SHAPES,
    Coordinator,
    FakeSession,
    frame_of,
    identity,
    manifest,
    received_state,
    round_task,
    samples,
)

from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.courier import offline_status
from sparsyedge.edge.device.outbox import Outbox
from sparsyedge.edge.protocol.messages import Accepted, Delta, DeviceStatus, Offer, Refused, Report, decode
from sparsyedge.edge.tensors import model_id

pytestmark = pytest.mark.timeout(300)


def test_round_goes_from_download_to_final_report(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    coordinator.announce(round_task())
    make_agent().run()

    assert decode(coordinator.sent("status")[0], DeviceStatus).state == "online"
    assert coordinator.sent("status")[-1] == offline_status("boot")
    state = received_state(coordinator)
    assert int(np.count_nonzero(state["conv.weight"])) == 864
    # Six steps of 0.25 (two epochs of three batches) up a ramp; the lower half of the prunable weights is gone.
    trained = INITIAL["conv.weight"].reshape(-1) + 6 * 0.25 * np.arange(1, 1729)
    np.testing.assert_allclose(state["conv.weight"].reshape(-1), np.where(np.arange(1728) < 864, 0, trained), rtol=1e-5)
    np.testing.assert_allclose(state["fc.bias"], INITIAL["fc.bias"] + 6 * 0.25 * np.arange(1, 5), rtol=1e-5)
    offer = decode(coordinator.sent("offer")[0], Offer)
    assert (offer.samples, offer.base, offer.report.steps) == (SAMPLES, model_id(INITIAL), 6)
    assert list(offer.report.phases) == ["download", "train", "prune", "encode"]
    report = decode(coordinator.sent("report")[0], Report)
    assert list(report.phases) == ["download", "train", "prune", "encode", "upload"]
    fetched = [content for role, content in FILES.items() if role not in ("inference", "skeleton")]
    assert report.bytes_down == len(manifest()) + sum(map(len, fetched))
    assert report.bytes_up == offer.update.bytes
    assert report.pid > 0
    assert (report.loss, report.loss_rms) == (0.5, 0.5)


def test_later_round_fetches_the_model_only(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    model = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    frame = frame_of(model, base_id=model_id(model))
    second = round_task(round=2, model_id=model_id(model), model=coordinator.offer_blob(frame))

    def go_on() -> None:
        coordinator.assembly = None
        coordinator.after_verdict = lambda: coordinator.announce(round_task(state="finished"))
        coordinator.fetched.clear()
        coordinator.announce(second)

    coordinator.announce(round_task())
    coordinator.after_verdict = go_on
    make_agent().run()

    assert coordinator.fetched == [second.model.sha256]
    reports = [decode(payload, Report) for payload in coordinator.sent("report")]
    assert [report.round for report in reports] == [1, 2]
    assert reports[1].bytes_down == len(frame)
    np.testing.assert_allclose(received_state(coordinator, model)["fc.bias"], 2 + 6 * 0.25 * np.arange(1, 5))


@pytest.mark.parametrize(("number", "pruned_before"), [(1, False), (2, True)])
def test_a_model_that_is_sent_in_round_1_is_trained_whole_by_every_group(
    number: int, pruned_before: bool, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    method = msgspec.json.decode(manifest())["method"] | {"sparsities": [0.5], "shares": [1]}
    # Training turns the smaller half of the weights into the larger half.
    weights = np.linspace(2, 1, 1728, dtype=np.float32).reshape(SHAPES["conv.weight"])
    model = {**INITIAL, "conv.weight": weights}
    frame = frame_of(model, base_id=model_id(model), round_number=number)
    coordinator.announce(
        round_task(
            round=number,
            manifest=coordinator.offer_blob(manifest(method=method)),
            model_id=model_id(model),
            model=coordinator.offer_blob(frame),
        )
    )
    make_agent().run()
    state = received_state(coordinator, model)["conv.weight"].reshape(-1)[1000:]
    ramp = 6 * 0.25 * np.arange(1001, 1729, dtype=np.float32)
    np.testing.assert_allclose(state, ramp + (0 if pruned_before else weights.reshape(-1)[1000:]), rtol=1e-5)


def test_device_that_holds_the_model_before_fetches_the_difference_only(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    before = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    after = {name: np.full(shape, 2.5, dtype=np.float32) for name, shape in SHAPES.items()}
    whole = coordinator.offer_blob(frame_of(before, base_id=model_id(before)))
    difference = frame_of(after, base_id=model_id(before), base=before)
    delta = Delta(base=model_id(before), model=coordinator.offer_blob(difference))
    older = Delta(base="0" * 64, model=NO_BLOB)
    third = round_task(round=3, model_id=model_id(after), model=whole, deltas=(older, delta))

    def go_on() -> None:
        coordinator.assembly = None
        coordinator.after_verdict = lambda: coordinator.announce(round_task(state="finished"))
        coordinator.fetched.clear()
        coordinator.announce(third)

    coordinator.announce(round_task(round=2, model_id=model_id(before), model=whole))
    coordinator.after_verdict = go_on
    make_agent().run()

    assert coordinator.fetched == [delta.model.sha256]
    np.testing.assert_allclose(received_state(coordinator, after)["fc.bias"], 2.5 + 6 * 0.25 * np.arange(1, 5))


def test_restarted_device_has_artifacts_and_model_on_disk(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    model = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    frame = frame_of(model, base_id=model_id(model))
    task = round_task(round=2, model_id=model_id(model), model=coordinator.offer_blob(frame))
    coordinator.announce(task)
    make_agent().run()
    coordinator.fetched.clear()
    coordinator.assembly = None
    coordinator.announce(msgspec.structs.replace(task, seed=2))
    make_agent().run()
    assert coordinator.fetched == []


def test_device_outside_the_cohort_does_nothing(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    coordinator.announce(round_task(cohort=("pi-02",)))
    coordinator.announce(round_task(state="finished"))
    make_agent().run()
    assert (FakeSession.steps, coordinator.sent("offer")) == (0, [])


def test_the_end_of_a_run_is_said_once(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparsyedge")
    agent = make_agent()
    agent._until_finished = False
    for _ in range(4):
        coordinator.announce(round_task(state="finished", round=3, rounds=3))
        assert agent._take_turn()
    said = [record.getMessage() for record in caplog.records if "finished" in record.getMessage()]
    assert len(said) == 1
    assert said[0].endswith("is finished, after round 3 of 3; waiting for the next run")


def test_stopped_agent_leaves_with_its_status_offline(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent()
    agent.stop()
    agent.run()
    assert coordinator.sent("status") == [offline_status("boot")]


def test_refused_update_is_dropped_with_the_reason_in_the_log(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    coordinator.verdict = lambda offer: Refused(**identity(offer), reason="round 1 is closed")
    coordinator.announce(round_task())
    make_agent().run()
    assert "refused the update: round 1 is closed" in caplog.text
    assert coordinator.sent("report") == []
    assert Outbox(tmp_path / "outbox").pending is None


def test_round_that_closes_ends_the_training(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    def close() -> None:
        coordinator.announce(round_task(state="closed"))
        coordinator.announce(round_task(state="finished"))

    FakeSession.on_step = close
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 1
    assert coordinator.sent("offer") == []


def test_longer_deadline_does_not_disturb_the_training(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    FakeSession.on_step = lambda: coordinator.announce(round_task(deadline_unix_s=float(FakeSession.steps)))
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 6


def test_restarted_device_offers_its_update_without_training_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent()
    coordinator.verdict = lambda offer: None
    coordinator.on_offer = agent.stop
    coordinator.announce(round_task())
    agent.run()
    assert FakeSession.steps == 6
    offered = coordinator.sent("offer")[0]

    coordinator.on_offer = lambda: None
    coordinator.verdict = lambda offer: Accepted(**identity(offer))
    make_agent().run()
    assert FakeSession.steps == 6
    assert coordinator.sent("offer")[-1] == offered
    assert list(decode(coordinator.sent("report")[0], Report).phases)[-1] == "upload"


def test_task_published_again_after_the_answer_is_not_done_twice(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    def announce_again() -> None:
        coordinator.announce(round_task(deadline_unix_s=5.0))
        coordinator.announce(round_task(state="finished"))

    coordinator.after_verdict = announce_again
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 6
    assert len(coordinator.sent("report")) == 1


def test_restarted_device_goes_on_after_its_last_finished_epoch(
    coordinator: Coordinator, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    agent = make_agent()

    def stop_in_the_second_epoch() -> None:
        if FakeSession.steps == 4:
            agent.stop()

    FakeSession.on_step = stop_in_the_second_epoch
    coordinator.announce(round_task())
    agent.run()
    assert FakeSession.steps == 4
    FakeSession.on_step = None
    make_agent().run()
    # Three steps of the first epoch, one lost step, three of the second epoch.
    assert FakeSession.steps == 7
    report = decode(coordinator.sent("report")[0], Report)
    assert report.steps == 6
    assert not (tmp_path / "job.checkpoint").exists()


@pytest.mark.parametrize("stop_at", [4, 7], ids=["a job that was cut short", "an update that was not delivered"])
def test_what_was_made_of_other_data_of_the_same_length_is_not_used(
    stop_at: int, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent()

    def stop_training() -> None:
        if FakeSession.steps == stop_at:
            agent.stop()

    FakeSession.on_step = stop_training
    coordinator.verdict = lambda offer: None
    coordinator.on_offer = agent.stop
    coordinator.announce(round_task())
    agent.run()
    before = FakeSession.steps
    FakeSession.on_step = None
    coordinator.on_offer = lambda: None
    coordinator.assembly = None
    coordinator.verdict = lambda offer: Accepted(**identity(offer))
    make_agent(data=samples(label=2)).run()
    # The whole job again.
    assert FakeSession.steps == before + 6
