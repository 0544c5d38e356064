"""The path of an update into the coordinator, over a real broker."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import closing

import numpy as np
import pytest
from fixtures.dense_way import average
from fixtures.scripted_fleet import TOPICS, Fleet, answer, report_of

from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.page_store import PageStore
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.chunks import chunk_of, cut
from sparsyedge.edge.protocol.messages import Accepted, DeviceStatus, Grant, Refused, UpgradeStatus, encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.tensors import model_id
from sparsyedge.edge.wire.envelope import DIGEST_BYTES

pytestmark = pytest.mark.mosquitto


def test_an_accepted_update_is_on_disk_before_the_device_hears_of_it(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2)
    first, _ = fleet.join("d1", "d2")
    task = first.until_round(1)
    assert isinstance(first.deliver(task), Accepted)
    assert (fleet.config.run_path / "updates/1.log").read_bytes() == first.frame_of(task)
    with closing(fleet.store()) as store:
        assert store.samples(1) == {"d1": 10}
    run.coordinator.interrupt()
    assert run.result().run.state == "stopped"


def test_an_update_is_hashed_once_on_its_way_in(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fleet.start(cohort_size=2)
    first, _ = fleet.join("d1", "d2")
    task = first.until_round(1)
    frame = first.frame_of(task)
    offer = first.offer_of(task, frame)
    sha256, hashed = hashlib.sha256, []

    def counted(content: bytes = b"") -> object:
        # All of it, or all but the digest in which it ends.
        hashed.append(content in (frame, frame[:-DIGEST_BYTES]))
        return sha256(content)

    monkeypatch.setattr(hashlib, "sha256", counted)
    reply = first.ask(offer)
    assert isinstance(reply, Grant)
    for index, chunk in cut(frame, offer.update, reply.missing):
        first.link.publish(TOPICS.upload("d1", offer.update.sha256, index), chunk)
    first.until(lambda: bool(first.replies))
    assert isinstance(first.replies.pop(0), Accepted)
    assert hashed.count(True) == 1
    run.coordinator.interrupt()
    run.result()


def test_offers_are_answered_again_and_other_updates_refused(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2)
    first, _ = fleet.join("d1", "d2")
    task = first.until_round(1)
    first.deliver(task)
    assert isinstance(first.ask(first.offer_of(task, first.frame_of(task))), Accepted)
    other = first.offer_of(task, first.frame_of(task, answer("d9", 1, fleet.initial)))
    reply = first.ask(other)
    assert isinstance(reply, Refused)
    assert "already accepted" in reply.reason
    run.coordinator.interrupt()
    run.result()


def test_a_bad_update_is_refused_and_the_round_closes_without_it(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparsyedge")
    run = fleet.start(rounds=1, cohort_size=2, min_updates=1, deadline_s=2.0)
    good, bad = fleet.join("d1", "d2")
    task = bad.until_round(1)
    poison = answer("d2", 1, fleet.initial)
    poison["fc.bias"] = np.full_like(poison["fc.bias"], np.nan)
    reply = bad.deliver(task, poison)
    assert isinstance(reply, Refused)
    assert "fc.bias holds NaN or infinity" in reply.reason
    good.deliver(good.until_round(1))
    summary = run.result()
    assert summary.run.model_id == model_id(average([(10, answer("d1", 1, fleet.initial))]))
    assert (summary.rounds[0].updates, summary.rounds[0].refused) == (1, 1)
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "fc.bias" in line] == [f"round 1: refused from d2: {reply.reason}"]
    assert said[-1] == "the run is finished"


def test_an_upload_in_any_order_with_repeats_and_a_pause_is_put_together(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    frame = device.frame_of(task)
    offer = device.offer_of(task, frame)
    assert isinstance(device.ask(offer), Grant)
    last = offer.update.chunks - 1
    assert last >= 3
    for index in (last, 1, last, 1):
        device.link.publish(TOPICS.upload("d1", offer.update.sha256, index), chunk_of(frame, offer.update, index))
    grant = device.ask(offer)
    assert isinstance(grant, Grant)
    assert grant.missing == ((0, 1), (2, last))
    assert isinstance(device.deliver(task), Accepted)
    assert run.result().rounds[0].updates == 1


def test_rubbish_is_counted_and_harms_nobody(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    frame = device.frame_of(task)
    offer = device.offer_of(task, frame)
    evil = Link("127.0.0.1", fleet.port, identity="evil")
    evil.open()
    for payload in (b"", b"\x00\xff", b"[" * 50_000, b'{"run": "\xff"}', json.dumps({"run": 1}).encode()):
        for topic in (TOPICS.offer("evil"), TOPICS.report("evil"), TOPICS.status("evil")):
            evil.publish(topic, payload)
    evil.publish(TOPICS.upload("evil", "x", 0), b"never granted")
    evil.publish(f"{TOPICS.root}/dev/evil/up/x/not-a-number", b"x")
    evil.publish(TOPICS.report("evil"), encode(report_of(task)))
    evil.publish(TOPICS.offer("evil"), encode(offer))
    grant = device.ask(offer)
    assert isinstance(grant, Grant)
    evil.publish(TOPICS.upload("d1", offer.update.sha256, 0), b"a chunk of the wrong size")
    evil.publish(TOPICS.upload("d1", offer.update.sha256, 999_999), b"")
    assert isinstance(device.deliver(task), Accepted)
    summary = run.result()
    evil.close()
    assert summary.run.model_id == model_id(average([(10, answer("d1", 1, fleet.initial))]))
    reasons = fleet.refused()
    assert sum(reasons.values()) >= 15
    assert any("not in the cohort" in reason for reason in reasons)
    assert any("no update was accepted" in reason for reason in reasons)


def test_a_disk_that_cannot_be_written_is_one_sentence(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: UpdateFiles, frame: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UpdateFiles, "save", full)
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    offer = device.offer_of(task, device.frame_of(task))
    device.ask(offer)
    for index in range(offer.update.chunks):
        chunk = chunk_of(device.frame_of(task), offer.update, index)
        device.link.publish(TOPICS.upload("d1", offer.update.sha256, index), chunk)
    with pytest.raises(RunError, match=r"cannot write to the run directory .*No space left on device"):
        run.result()
    device.listen(0.5)
    assert device.replies == []


def test_what_a_device_says_of_its_upgrade_is_on_record(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    for stage, reason in (("installing", ""), ("refused", "the release has expired")):
        upgrade = UpgradeStatus(stage=stage, reason=reason)
        status = DeviceStatus(state="online", boot_id="b", samples=10, upgrade=upgrade)
        device.link.publish(TOPICS.status("d1"), encode(status), retain=True)
    device.deliver(task)
    run.result()
    with closing(PageStore.open(fleet.config.run_path)) as store:
        known = store.present_devices()["d1"]
    assert (known.upgrade, known.upgrade_reason) == ("refused", "the release has expired")


def test_a_device_that_declines_is_left_out_of_the_round_and_its_reason_is_on_record(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=2, min_updates=1, deadline_s=60.0)
    hot, well, spare = fleet.join("d1", "d2", "d3")
    unfit = DeviceStatus(state="online", boot_id="b", samples=10, unfit="temperature is 91.0 C, allowed are 80 C")
    hot.until_round(1)
    for _ in range(2):
        hot.link.publish(TOPICS.status("d1"), encode(unfit), retain=True)
    for device in (well, spare):
        task = device.until_round(1)
        if device.name in task.cohort:
            device.deliver(task)
    run.coordinator.interrupt()
    summary = run.result()
    assert summary.refusals == ()
    with closing(fleet.store()) as store:
        reasons = {member.device: member.unfit for member in store.members()}
    assert reasons == {"d1": unfit.unfit, "d2": "", "d3": ""}
