"""Versions and features: what is read, what is refused, and which side the sentence says to upgrade."""

from __future__ import annotations

import msgspec
import pytest

from sparsyedge.edge import compatibility
from sparsyedge.edge.compatibility import FIRST, OURS, Demand, Span, Speaks, which_upgrade
from sparsyedge.edge.errors import FrameError, VersionError
from sparsyedge.edge.protocol.messages import Accepted, DeviceStatus, decode, decode_reply, encode
from sparsyedge.edge.text import MAX_TEXT

NEXT = Speaks(protocol=Span(1, 2), manifest=Span(5, 7), features=("codec-int4",))
ACCEPTED = encode(Accepted(run="demo", round=2, update="ab" * 32))
STATUS = encode(DeviceStatus(state="online", boot_id="b"))
# Before 3.14 Python counts levels; since then it looks at the stack, which has room for some 100,000.
DEEP = 2_000_000


def extended(payload: bytes, addition: bytes) -> bytes:
    return payload[:-1] + b"," + addition + b"}"


@pytest.mark.parametrize(("span", "text"), [(Span(1, 1), "1"), (Span(2, 4), "2 to 4")])
def test_a_span_is_told_as_people_would(span: Span, text: str) -> None:
    assert str(span) == text


@pytest.mark.parametrize(
    ("speaks", "demand"),
    [
        (FIRST, Demand(protocol=1)),
        (NEXT, Demand(protocol=1)),
        (NEXT, Demand(protocol=2, needs=("codec-int4",))),
        (OURS, Demand(protocol=OURS.protocol.oldest, needs=OURS.features)),
    ],
)
def test_a_device_that_reads_what_the_coordinator_writes_takes_part(speaks: Speaks, demand: Demand) -> None:
    assert which_upgrade("pi-07", "sparsyedge 0.1.0", speaks, demand, manifest=5) == ""


@pytest.mark.parametrize(
    ("speaks", "demand", "manifest", "sentence"),
    [
        (
            FIRST,
            Demand(protocol=2, software="sparsyedge 0.9.0"),
            5,
            "upgrade sparsyedge on pi-07: pi-07 runs sparsyedge 0.4.0 and reads protocol 1, "
            "the coordinator runs sparsyedge 0.9.0 and writes protocol 2",
        ),
        (
            Speaks(protocol=Span(2, 3), manifest=Span(5, 5)),
            Demand(protocol=1, software="sparsyedge 0.1.0"),
            5,
            "upgrade sparsyedge on the coordinator: pi-07 runs sparsyedge 0.4.0 and reads protocol 2 to 3, "
            "the coordinator runs sparsyedge 0.1.0 and writes protocol 1",
        ),
        (
            FIRST,
            Demand(),
            6,
            "upgrade sparsyedge on pi-07: pi-07 runs sparsyedge 0.4.0 and reads manifest 5, "
            "the run's artifacts have manifest 6",
        ),
        (
            Speaks(protocol=Span(1, 1), manifest=Span(6, 7)),
            Demand(),
            5,
            "run `sparsyedge export` again with sparsyedge 0.4.0: pi-07 runs sparsyedge 0.4.0 and reads "
            "manifest 6 to 7, the run's artifacts have manifest 5",
        ),
        (
            FIRST,
            Demand(needs=("codec-int4",), software="sparsyedge 0.9.0"),
            5,
            "upgrade sparsyedge on pi-07: pi-07 runs sparsyedge 0.4.0 without `codec-int4`, "
            "the coordinator runs sparsyedge 0.9.0 and needs it",
        ),
    ],
)
def test_the_sentence_names_the_device_both_versions_and_the_side_to_upgrade(
    speaks: Speaks, demand: Demand, manifest: int, sentence: str
) -> None:
    assert which_upgrade("pi-07", "sparsyedge 0.4.0", speaks, demand, manifest=manifest) == sentence


def test_the_sentence_fits_into_a_status_whatever_the_sides_call_themselves() -> None:
    longest = Demand(protocol=10_000, software="s" * MAX_TEXT)
    assert len(which_upgrade("d" * 63, "s" * MAX_TEXT, FIRST, longest)) <= MAX_TEXT
    assert which_upgrade("pi-07", "a\n\x1b[31mb", FIRST, longest).isprintable()
    assert "pi-07 runs a sparsyedge of unknown version" in which_upgrade("pi-07", "", FIRST, longest)


@pytest.mark.parametrize("addition", [b'"colour":"red"', b'"deep":{"list":[1,{"x":null}]}', b'"protocol":1,"needs":[]'])
def test_a_field_of_a_later_version_is_ignored(addition: bytes) -> None:
    assert encode(decode_reply(extended(ACCEPTED, addition))) == ACCEPTED
    assert encode(decode(extended(STATUS, addition), DeviceStatus)) == STATUS


@pytest.mark.parametrize(
    ("addition", "sentence"),
    [
        (b'"protocol":2', "upgrade sparsyedge on this side: the message is in protocol 2, this side runs sparsyedge"),
        (b'"needs":["codec-int4"]', "upgrade sparsyedge on this side: it runs sparsyedge .* without `codec-int4`"),
    ],
)
def test_what_must_not_be_ignored_is_refused_whatever_else_the_message_holds(addition: bytes, sentence: str) -> None:
    with pytest.raises(VersionError, match=sentence):
        decode_reply(extended(ACCEPTED, addition))
    # Even for an unknown kind of reply with fields of other types, the error is about the version.
    with pytest.raises(VersionError, match=sentence):
        decode_reply(b'{"type":"postponed","round":"three",' + addition + b"}")


def test_a_message_older_than_this_side_reads_names_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Speaks(protocol=Span(2, 3), manifest=Span(5, 5))
    monkeypatch.setattr(compatibility, "OURS", later)
    with pytest.raises(VersionError, match=r"on the sender: .* in protocol 1, .* reads protocol 2 to 3"):
        decode_reply(extended(ACCEPTED, b'"protocol":1'))


def test_a_message_that_names_no_version_is_read_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every version must read a status: it tells a side that the other is too old.
    later = Speaks(protocol=Span(2, 3), manifest=Span(6, 6))
    monkeypatch.setattr(compatibility, "OURS", later)
    assert decode(STATUS, DeviceStatus).state == "online"


@pytest.mark.parametrize(
    "addition",
    [
        b'"protocol":"2"',
        b'"protocol":0',
        b'"protocol":10001',
        b'"needs":"all"',
        b'"needs":["' + b"x" * 41 + b'"]',
        b'"needs":["no\\nlines"]',
        b'"needs":[' + b",".join([b'"x"'] * 65) + b"]",
        b'"deep":' + b"[" * DEEP + b"]" * DEEP,
    ],
)
def test_demands_that_make_no_sense_are_refused(addition: bytes) -> None:
    with pytest.raises(FrameError, match="not a valid reply"):
        decode_reply(extended(ACCEPTED, addition))


@pytest.mark.parametrize(
    "speaks",
    [
        {"protocol": [2, 1], "manifest": [5, 5]},
        {"protocol": [0, 1], "manifest": [5, 5]},
        {"protocol": [1], "manifest": [5, 5]},
        {"protocol": 1, "manifest": 5},
        {"protocol": [1, 1], "manifest": [5, 5], "features": ["x"] * 65},
        {"protocol": [1, 1], "manifest": [5, 5], "features": ["\x1b[31m"]},
        {"manifest": [5, 5]},
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused(speaks: object) -> None:
    with pytest.raises(FrameError, match="not a valid DeviceStatus"):
        decode(extended(STATUS, b'"speaks":' + msgspec.json.encode(speaks)), DeviceStatus)


def test_an_announcement_of_a_later_version_is_read() -> None:
    later = b'"speaks":{"protocol":[1,7,9],"manifest":[5,8],"features":["codec-int4"],"dialects":["low german"]}'
    status = decode(extended(STATUS, later), DeviceStatus)
    assert status.speaks == Speaks(protocol=Span(1, 7), manifest=Span(5, 8), features=("codec-int4",))
