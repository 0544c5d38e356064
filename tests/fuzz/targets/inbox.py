"""The coordinator's inbox: a retained flag, a topic below the fleet's root up to a line's end, and a payload."""

from __future__ import annotations

from fuzz.targets.messages import OFFER, REPORT, SHA, STATUS

from sparsyedge.coordinator.fleet.inbox import (
    MAX_NUMBER,
    Chunk,
    Garbage,
    Kept,
    Reported,
    StatusChanged,
    read,
)
from sparsyedge.coordinator.rounds.events import OfferReceived
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import Report, encode
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.text import MAX_TEXT

TOPICS = Topics("lab")


def seeds() -> list[bytes]:
    return [
        b"\0dev/pi-01/status\n" + encode(STATUS),
        b"\1dev/pi-01/status\n" + encode(STATUS),
        b"\0dev/pi-01/offer\n" + encode(OFFER),
        b"\0dev/pi-01/report\n" + encode(REPORT),
        f"\0dev/pi-01/up/{SHA}/12\n".encode() + bytes(100),
        b"\0round\n{}",
    ]


def check(data: bytes) -> None:
    topic, _, payload = data[1:].partition(b"\n")
    # A broker hands on only topics that are UTF-8.
    name = f"{TOPICS.root}/{topic.decode(errors='replace')}"
    found = read(TOPICS, Received(name, payload, retained=bool(data[:1].strip(b"\0"))))
    match found:
        case Garbage(device, reason):
            assert len(device) <= 63
            assert len(reason.encode().decode()) <= MAX_TEXT
        case StatusChanged(_, status):
            assert status.samples <= MAX_NUMBER
            assert max(map(len, (status.unfit, status.boot_id, status.software))) <= MAX_TEXT
        case OfferReceived(_, offer):
            _check_report(offer.report)
        case Reported(_, report):
            _check_report(report)
        case Chunk(_, _, index, content):
            assert 0 <= index < 10**7
            assert content == payload
        case Kept():
            assert len(found.device) <= 63
            assert found.topic == name
        case _:
            assert found is None


def _check_report(report: Report) -> None:
    assert max(report.round, report.steps, report.bytes_up, report.bytes_down, report.pid) <= MAX_NUMBER
    assert len(report.energy_source) <= MAX_TEXT
    assert len(report.phases) <= 5
