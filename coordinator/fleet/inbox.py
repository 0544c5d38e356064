"""Reads device messages with suspicion: each one becomes a value, never an exception. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import msgspec
from msgspec import UNSET

from sparsyedge.coordinator.rounds.events import OfferReceived
from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.phase_costs import Phase, PhaseCost
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.chunks import parse_index
from sparsyedge.edge.protocol.messages import DataNote, DeviceStatus, LocalEvaluation, Offer, Report, decode
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.text import one_line

__all__ = ["Chunk", "Garbage", "Kept", "Progressed", "Reported", "StatusChanged", "read"]

PHASES = get_args(Phase)
MAX_SAMPLES = 10**9
"""No device trains on more. A larger claim is an attempt to outvote the other devices."""
MAX_NUMBER = 2**53
"""The largest whole number that JSON, SQLite and float64 all hold exactly."""
MAX_STATUS_BYTES = 16 * 1024
MAX_PROGRESS_BYTES = 2 * 1024
MAX_KNOWN = 100_000

_identifiers: set[str] = set()
"""Names of devices that were checked before."""


@dataclass(frozen=True)
class StatusChanged:
    """A device sent its status."""

    device: str
    status: DeviceStatus


@dataclass(frozen=True)
class Progressed:
    """A device said what it is doing; not read yet, since it may say so too often."""

    device: str
    payload: bytes


@dataclass(frozen=True)
class Reported:
    """A device reported what a round cost it."""

    device: str
    report: Report


@dataclass(frozen=True)
class Chunk:
    """One chunk of an update."""

    device: str
    update: str
    index: int
    content: bytes


@dataclass(frozen=True)
class Garbage:
    """A message no honest device sends; `reason` says what is wrong with it."""

    device: str
    reason: str


@dataclass(frozen=True)
class Kept:
    """A message the broker must not retain: it would stay in the broker's memory for ever."""

    device: str
    topic: str


MAY_BE_KEPT = {"status": MAX_STATUS_BYTES, "progress": MAX_PROGRESS_BYTES}
"""What the broker may retain of a device, and the most bytes of it."""

Message = StatusChanged | Progressed | OfferReceived | Reported | Chunk


def read(topics: Topics, received: Received) -> Message | Garbage | Kept | None:
    """Decode a message; None if it does not concern the coordinator."""
    match topics.parse(received.topic):
        case ("dev", device, kind, *rest) if _is_identifier(device):
            most = None if rest else MAY_BE_KEPT.get(kind)
            if received.retained and most is None:
                # An empty one is ours: it clears the topic.
                return Kept(device, received.topic) if received.payload else None
            if most is not None and len(received.payload) > most:
                return Kept(device, received.topic)
            try:
                return _read_from(device, kind, rest, received)
            except FrameError as error:
                return Garbage(device, one_line(f"unreadable {kind}: {error}"))
    return None


def _read_from(device: str, kind: str, rest: list[str], received: Received) -> Message | None:
    if kind == "status" and not rest:
        return _read_status(device, received.payload)
    if kind == "progress" and not rest:
        return Progressed(device, received.payload)
    match kind, rest:
        case "offer", []:
            offer = decode(received.payload, Offer)
            _check_offer(offer)
            return OfferReceived(device, offer)
        case "report", []:
            report = decode(received.payload, Report)
            _check_report(report)
            return Reported(device, report)
        case "up", [update, index]:
            return Chunk(device, update, parse_index(index), received.payload)
    return None


def _read_status(device: str, payload: bytes) -> StatusChanged | None:
    if not payload:  # a cleared status says nothing about the device
        return None
    status = decode(payload, DeviceStatus)
    _check_numbers(samples=status.samples)
    _check_text(boot_id=status.boot_id, software=status.software, unfit=status.unfit, alarm=status.alarm)
    if status.settings is not UNSET:
        _check_text(**status.settings.words())
    if status.upgrade:
        _check_numbers(order=status.upgrade.order)
        _check_text(reason=status.upgrade.reason, upgrade_alarm=status.upgrade.alarm)
    return StatusChanged(device, status)


def _check_offer(offer: Offer) -> None:
    if offer.samples > MAX_SAMPLES:
        raise FrameError(f"samples is out of bounds; allowed are 1 to {MAX_SAMPLES}")
    _check_numbers(round=offer.round)
    _check_report(offer.report)


def _check_report(report: Report) -> None:
    _check_numbers(
        round=report.round,
        bytes_down=report.bytes_down,
        bytes_up=report.bytes_up,
        steps=report.steps,
        pid=report.pid,
        regrown=report.regrown or 0,
        peak_rss_mb=report.peak_rss_mb,
        energy_hz=report.energy_hz,
        idle_w=report.idle_w or 0.0,
    )
    _check_text(energy_source=report.energy_source)
    if isinstance(report.data, DataNote):
        _check_text(trouble=report.data.trouble)
    if isinstance(report.evaluated, LocalEvaluation):
        _check_evaluated(report.evaluated)
    for name, cost in report.phases.items():
        _check_phase(name, cost)


def _check_evaluated(found: LocalEvaluation) -> None:
    """Refuse scores without samples; the message itself bounds each of them."""
    if not found.samples and (found.before is not UNSET or found.after is not UNSET):
        raise FrameError("evaluated has scores on 0 samples")


def _check_phase(name: str, cost: PhaseCost) -> None:
    if name not in PHASES:
        raise FrameError(f"phase {name[:20]!r} is unknown; allowed are {', '.join(PHASES)}")
    _check_numbers(seconds=cost.seconds, joules=cost.joules or 0.0)


def _check_numbers(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= MAX_NUMBER:
            raise FrameError(f"{name} is out of bounds; allowed are 0 to {MAX_NUMBER}")


def _check_text(**values: str) -> None:
    for name, value in values.items():
        if not value.isprintable():
            raise FrameError(f"{name} holds characters that cannot be printed")


def _is_identifier(name: str) -> bool:
    if name in _identifiers:
        return True
    try:
        msgspec.convert(name, Identifier)
    except msgspec.ValidationError:
        return False
    if len(_identifiers) >= MAX_KNOWN:
        _identifiers.clear()
    _identifiers.add(name)
    return True
