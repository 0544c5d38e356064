"""The view of `coordinator devices`: one line per device, and the reason if it does not take part."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.record.records import MemberRecord
from sparsyedge.coordinator.record.store_reader import StoreReader
from sparsyedge.coordinator.rounds.progress import Progress
from sparsyedge.edge.device.energy import joules_text
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["Attendance", "DeviceView", "as_lines", "look_at_devices"]

Attendance = Literal["online", "training", "left out", "unfit", "revoked", "offline"]

COLUMNS = {"round": 5, "updates": 7, "refused": 7, "seconds": 7, "MB down": 7, "MB up": 6}
STATE_WIDTH = len("offline 59 min")
NAME_WIDTH = 20
ENERGY_WIDTH = 16
INDENT = "    "
UNITS = ((1, 120, "s"), (60, 99 * 60, "min"), (3600, 48 * 3600, "h"), (86_400, float("inf"), "d"))


@dataclass(frozen=True)
class DeviceView:
    """A member of the run and what it is doing."""

    member: MemberRecord
    attendance: Attendance


def look_at_devices(store: StoreReader) -> tuple[tuple[DeviceView, ...], str]:
    """Return all devices that the run has heard of, ordered by name, and a note if revocations are unknown."""
    progress, running = store.progress(), store.run().state in ("running", "paused")
    revoked, doubt = _revoked(store)
    at_work: set[str] = set()
    if running and progress.open is not None:
        at_work = set(progress.open.cohort) - set(progress.open.accepted)
    members = (
        DeviceView(_up_to_date(member, progress), _attendance(_up_to_date(member, progress), revoked, at_work))
        for member in store.members()
    )
    return tuple(members), doubt


def _up_to_date(member: MemberRecord, progress: Progress) -> MemberRecord:
    """Clear the member's quarantine if it is over."""
    present = progress.open.round if progress.open else progress.closed_round + 1
    return member if present < member.quarantined_until else replace(member, quarantined_until=0)


def _attendance(member: MemberRecord, revoked: Collection[str], at_work: Collection[str]) -> Attendance:
    if member.device in revoked:
        return "revoked"
    if member.unfit:
        return "unfit"
    if not member.online:
        return "offline"
    if member.device in at_work:
        return "training"
    return "left out" if member.quarantined_until else "online"


def _revoked(store: StoreReader) -> tuple[frozenset[str], str]:
    """Return the revoked devices (none without an authority), and a note if the authority cannot be read."""
    folder = msgspec.json.decode(store.config()).get("authority")
    if folder is None:
        return frozenset(), ""
    try:
        with Authority.open(Path(folder).expanduser()).ledger() as ledger:
            return frozenset(ledger.denied()), ""
    except SparsyedgeError as error:
        return frozenset(), f"who is revoked is unknown: {error}"


def as_lines(devices: tuple[DeviceView, ...], *, width: int) -> list[str]:
    """Return a table for a terminal of `width` columns, 80 or more; reasons follow below their device."""
    if not devices:
        return ["no device has been heard of yet"]
    fixed = STATE_WIDTH + sum(COLUMNS.values()) + len(COLUMNS) + 1
    longest = max(NAME_WIDTH, *(len(view.member.device) for view in devices))
    names = max(NAME_WIDTH, min(longest, width - fixed))
    energy = width >= names + fixed + 1 + ENERGY_WIDTH
    headings = [f"{name:>{wide}}" for name, wide in COLUMNS.items()] + [f"{'energy':>{ENERGY_WIDTH}}"] * energy
    lines = [" ".join((f"{'device':<{names}}", f"{'state':<{STATE_WIDTH}}", *headings)).rstrip()]
    lines.append("-" * len(lines[0]))
    now_s = time.time()
    for view in devices:
        cells = _cells(view.member)[: len(COLUMNS) + energy]
        values = [f"{cell:>{wide}}" for cell, wide in zip(cells, (*COLUMNS.values(), ENERGY_WIDTH), strict=False)]
        lines.append(" ".join((f"{_short(view.member.device, names):<{names}}", _state(view, now_s), *values)))
        for reason in _reasons(view.member):
            lines += textwrap.wrap(reason, width, initial_indent=INDENT, subsequent_indent=INDENT)
    counts = Counter(view.attendance for view in devices)
    lines += ["", f"{len(devices)} devices: {', '.join(f'{count} {state}' for state, count in counts.most_common())}"]
    return lines


def _cells(member: MemberRecord) -> list[str]:
    return [
        "-" if member.last_round is None else str(member.last_round),
        str(member.updates),
        str(sum(refusal.count for refusal in member.refusals)),
        f"{member.seconds:.1f}",
        _megabytes(member.bytes_down),
        _megabytes(member.bytes_up),
        "-" if member.joules is None else joules_text(member.joules, member.energy_kind),
    ]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.{2 if count < 100e6 else 0}f}"


def _state(view: DeviceView, now_s: float) -> str:
    text: str = view.attendance
    if view.attendance == "offline" and view.member.seen_at is not None:
        text += f" {_duration(max(0.0, now_s - view.member.seen_at))}"
    return f"{text:<{STATE_WIDTH}}"


def _duration(seconds: float) -> str:
    return next(f"{seconds / unit:.0f} {name}" for unit, limit, name in UNITS if seconds < limit)


def _reasons(member: MemberRecord) -> list[str]:
    """Return why it does not train or counts for less, its alarm, and its last refusal."""
    reasons = [f"unfit: {member.unfit}"] if member.unfit else []
    if member.quarantined_until:
        reasons.append(f"left out until round {member.quarantined_until}: {member.quarantine}")
    if member.alarm:
        reasons.append(f"alarm: {member.alarm}")
    if notable := [adjustment for adjustment in member.adjustments if adjustment.notable]:
        latest = notable[-1]
        reasons.append(f"counted for less in {len(notable)} rounds, last in round {latest.round}: {latest}")
    if member.refusals:
        last = max(member.refusals, key=lambda refusal: refusal.round)
        times = f" ({last.count}x)" if last.count > 1 else ""
        reasons.append(f"refused in round {last.round}{times}: {last.reason}")
    return ["".join(sign if sign.isprintable() else "?" for sign in reason) for reason in reasons]


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 3]}..."
