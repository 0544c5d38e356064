"""Messages from devices, good and hostile."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsyedge.coordinator.fleet.inbox import Chunk, Garbage, Kept, Reported, StatusChanged, read
from sparsyedge.coordinator.rounds.events import OfferReceived
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.messages import (
    Blob,
    DataNote,
    DeviceStatus,
    LocalEvaluation,
    Message,
    Offer,
    Report,
    Score,
    decode,
    encode,
)
from sparsyedge.edge.protocol.topics import Topics

TOPICS = Topics("lab")
SHA = "ab" * 32
REPORT = Report(
    run="r1",
    round=1,
    phases={"train": PhaseCost(1.0, None)},
    energy_source="none",
    energy_kind="none",
    bytes_down=0,
    bytes_up=0,
    steps=1,
    loss=1.0,
    peak_rss_mb=1.0,
    pid=1,
)
OFFER = Offer(run="r1", round=1, base=SHA, update=Blob(sha256=SHA, bytes=10), samples=5, report=REPORT)
STATUS = DeviceStatus(state="online", boot_id="x", samples=5)
TOPIC = {Offer: TOPICS.offer("d1"), Report: TOPICS.report("d1"), DeviceStatus: TOPICS.status("d1")}


def received(message: Message, **changes: object) -> Received:
    changed = msgspec.structs.replace(message, **changes)
    return Received(TOPIC[type(message)], encode(changed), False)


def test_good_messages_are_understood() -> None:
    assert read(TOPICS, received(STATUS)) == StatusChanged("d1", STATUS)
    assert read(TOPICS, received(OFFER)) == OfferReceived("d1", OFFER)
    assert read(TOPICS, received(REPORT)) == Reported("d1", REPORT)
    assert read(TOPICS, Received(TOPICS.upload("d1", SHA, 3), b"abc", False)) == Chunk("d1", SHA, 3, b"abc")


def test_a_field_of_a_later_version_is_ignored_and_a_feature_of_one_is_garbage_that_says_whom_to_upgrade() -> None:
    for message in (STATUS, OFFER, REPORT):
        plain = received(message)
        optional, needed = (
            Received(plain.topic, plain.payload[:-1] + addition, False)
            for addition in (b',"later":[1]}', b',"needs":["later"]}')
        )
        assert read(TOPICS, optional) == read(TOPICS, plain)
        refused = read(TOPICS, needed)
        assert isinstance(refused, Garbage)
        assert "upgrade sparsyedge on this side: it runs sparsyedge" in refused.reason
        assert "without `later`" in refused.reason


@pytest.mark.parametrize(
    "message",
    [
        received(OFFER, samples=10**10),
        received(OFFER, samples=10**40),
        received(OFFER, round=2**64),
        Received(TOPICS.offer("d1"), encode(OFFER).replace(b'"samples":5', b'"samples":' + b"9" * 400), False),
        Received(TOPICS.report("d1"), encode(REPORT).replace(b'"steps":1', b'"steps":' + b"9" * 400), False),
        received(OFFER, run="a/b"),
        received(OFFER, base="zz"),
        received(OFFER, update=Blob(sha256=SHA, bytes=2**40)),
        received(OFFER, report=msgspec.structs.replace(REPORT, steps=2**63)),
        received(REPORT, bytes_down=10**30),
        received(REPORT, phases={"sleep": PhaseCost(1.0, None)}),
        received(REPORT, phases={"train": PhaseCost(1e300, None)}),
        received(REPORT, energy_source="x" * 1000),
        received(REPORT, energy_source="two\nlines"),
        received(REPORT, pid=-1),
        received(STATUS, samples=10**30),
        received(STATUS, boot_id="\x00"),
        received(STATUS, settings=DeviceSettings(machine="two\nlines")),
        Received(TOPICS.offer("d1"), b"", False),
        Received(TOPICS.offer("d1"), b'{"run": "\xff"}', False),
        Received(TOPICS.offer("d1"), b'{"report": {"phases": {"x": {"y": ' + b"[" * 100_000, False),
        Received(TOPICS.report("d1"), b'{"phases": {"x": {"y": ' + b"[" * 100_000, False),
        Received(TOPICS.status("d1"), b"online", False),
        Received(f"{TOPICS.root}/dev/d1/up/{SHA}/-1", b"", False),
        Received(f"{TOPICS.root}/dev/d1/up/{SHA}/\u0661", b"", False),
        Received(f"{TOPICS.root}/dev/d1/up/{SHA}/{'9' * 5000}", b"", False),
    ],
)
def test_a_message_that_breaks_a_bound_is_garbage_with_a_short_reason(message: Received) -> None:
    found = read(TOPICS, message)
    assert isinstance(found, Garbage)
    assert found.device == "d1"
    assert 0 < len(found.reason) <= 200


@pytest.mark.parametrize(
    "topic",
    [
        "se/v1/other/dev/d1/status",
        f"{TOPICS.root}/dev/d1\n/status",
        f"{TOPICS.root}/dev/../status",
        f"{TOPICS.root}/dev//status",
        f"{TOPICS.root}/dev/d1",
        f"{TOPICS.root}/dev/d1/status/more",
        f"{TOPICS.root}/dev/d1/unheard-of",
        f"{TOPICS.root}/round",
    ],
)
def test_a_topic_that_is_not_ours_means_nothing(topic: str) -> None:
    assert read(TOPICS, Received(topic, encode(STATUS), False)) is None


def test_a_status_that_was_cleared_means_nothing() -> None:
    assert read(TOPICS, Received(TOPICS.status("d1"), b"", False)) is None


def test_an_offer_that_the_broker_was_to_keep_is_seen_as_that() -> None:
    kept = received(OFFER)
    assert read(TOPICS, Received(kept.topic, kept.payload, True)) == Kept("d1", kept.topic)
    # Our own clearing message comes back as well.
    assert read(TOPICS, Received(kept.topic, b"", True)) is None


@given(st.sampled_from(list(TOPIC.values())), st.binary(max_size=300))
def test_bytes_that_are_no_message_are_garbage(topic: str, payload: bytes) -> None:
    found = read(TOPICS, Received(topic, payload, False))
    if topic == TOPICS.status("d1") and not payload:
        assert found is None
    else:
        assert isinstance(found, Garbage)
        assert found.device == "d1"


@given(st.binary(max_size=300))
def test_a_chunk_is_taken_as_it_is(payload: bytes) -> None:
    assert read(TOPICS, Received(TOPICS.upload("d1", SHA, 0), payload, False)) == Chunk("d1", SHA, 0, payload)


@given(st.text(max_size=100))
def test_a_topic_speaks_for_the_device_that_it_names_and_no_other(tail: str) -> None:
    found = read(TOPICS, Received(f"{TOPICS.root}/dev/{tail}", b"{}", False))
    assert found is None or found.device == tail.split("/")[0]


@given(st.integers(0, len(encode(OFFER)) - 1), st.integers(0, 255))
def test_a_damaged_offer_is_garbage_or_another_offer_within_bounds(place: int, byte: int) -> None:
    payload = bytearray(encode(OFFER))
    payload[place] = byte
    found = read(TOPICS, Received(TOPICS.offer("d1"), bytes(payload), False))
    assert isinstance(found, Garbage | OfferReceived)
    if isinstance(found, OfferReceived):
        assert 1 <= found.offer.samples <= 10**9
        assert decode(encode(found.offer), Offer) == found.offer


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evaluated": LocalEvaluation(samples=0, before=Score(loss=1.0))}, "scores on 0 samples"),
        ({"data": DataNote(trouble="\x1b[31mred")}, "trouble holds characters that cannot be printed"),
    ],
)
def test_findings_and_notes_that_no_honest_device_sends_are_garbage(changes: dict[str, object], sentence: str) -> None:
    found = read(TOPICS, received(REPORT, **changes))
    assert isinstance(found, Garbage)
    assert sentence in found.reason


def test_a_report_may_have_the_phase_of_an_evaluation() -> None:
    report = msgspec.structs.replace(REPORT, phases={"evaluate": PhaseCost(1.0, None)})
    assert read(TOPICS, received(report)) == Reported("d1", report)
