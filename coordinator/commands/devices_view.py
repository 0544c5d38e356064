"""The view of `coordinator devices`: one line per device, and the reason if it does not take part."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sparsyedge.coordinator.authority.attendance import Attendance, attendance, authority_folder, revoked_devices
from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation
from sparsyedge.coordinator.record.evaluation_tables import score_text
from sparsyedge.coordinator.record.live import DeviceActivity
from sparsyedge.coordinator.record.records import MemberRecord
from sparsyedge.coordinator.record.situation import describe_activity
from sparsyedge.coordinator.record.store_reader import StoreReader
from sparsyedge.coordinator.rounds.progress import Progress
from sparsyedge.edge.device.energy import joules_text
from sparsyedge.edge.text import duration, one_line

__all__ = ["Attendance", "DeviceView", "as_lines", "look_at_devices"]

COLUMNS = {"round": 5, "updates": 7, "refused": 7, "seconds": 7, "MB down": 7, "MB up": 6}
STATE_WIDTH = len("offline 59 min")
NAME_WIDTH = 20
ENERGY_WIDTH = 16
SCORE_WIDTH = 8
VERSION_WIDTH = 11
INDENT = "    "
SHOWN_NAMES = 5
MAX_SOFTWARE = 40


@dataclass(frozen=True)
class DeviceView:
    """A member of the run and what it is doing."""

    member: MemberRecord
    attendance: Attendance
    activity: DeviceActivity | None = None
    """What it said last about its present job."""


def look_at_devices(
    store: StoreReader, activities: Mapping[str, DeviceActivity] | None = None
) -> tuple[tuple[DeviceView, ...], str]:
    """Return all devices that the run has heard of, ordered by name, and a note if revocations are unknown."""
    activities = activities or {}
    progress, running = store.progress(), store.run().state in ("running", "paused")
    revoked, doubt = revoked_devices(authority_folder(store))
    at_work: set[str] = set()
    if running and progress.open is not None:
        at_work = set(progress.open.cohort) - set(progress.open.accepted)
    members = (
        DeviceView(
            _up_to_date(member, progress),
            _attendance(_up_to_date(member, progress), revoked, at_work),
            activities.get(member.device) if running else None,
        )
        for member in store.members()
    )
    return tuple(members), doubt


def _up_to_date(member: MemberRecord, progress: Progress) -> MemberRecord:
    """Clear the member's quarantine if it is over."""
    present = progress.open.round if progress.open else progress.closed_round + 1
    return member if present < member.quarantined_until else replace(member, quarantined_until=0)


def _attendance(member: MemberRecord, revoked: Collection[str], at_work: Collection[str]) -> Attendance:
    return attendance(
        revoked=member.device in revoked,
        unfit=member.unfit,
        online=member.online,
        at_work=member.device in at_work,
        left_out=bool(member.quarantined_until),
    )


def as_lines(devices: tuple[DeviceView, ...], *, width: int) -> list[str]:
    """Return a table for a terminal of `width` columns, 80 or more; reasons follow below their device."""
    if not devices:
        return ["no device has been heard of yet"]
    fixed = STATE_WIDTH + sum(COLUMNS.values()) + len(COLUMNS) + 1
    longest = max(NAME_WIDTH, *(len(view.member.device) for view in devices))
    names = max(NAME_WIDTH, min(longest, width - fixed))
    # Wider terminals show the energy, the version, and what the device found of the model it was given and of its own.
    wide_columns = {"energy": ENERGY_WIDTH, "version": VERSION_WIDTH}
    if any(view.member.evaluated for view in devices):
        wide_columns |= {"global": SCORE_WIDTH, "personal": SCORE_WIDTH}
    shown, room = dict(COLUMNS), width - names - fixed
    for name, wide in wide_columns.items():
        room -= 1 + wide
        if room >= 0:
            shown[name] = wide
    headings = [f"{name:>{wide}}" for name, wide in shown.items()]
    lines = [" ".join((f"{'device':<{names}}", f"{'state':<{STATE_WIDTH}}", *headings)).rstrip()]
    lines.append("-" * len(lines[0]))
    now_s = time.time()
    for view in devices:
        values = [f"{cell:>{wide}}" for cell, wide in zip(_cells(view.member), shown.values(), strict=False)]
        lines.append(" ".join((f"{_short(view.member.device, names):<{names}}", _state(view, now_s), *values)))
        for reason in (*_doing(view), *_reasons(view.member)):
            lines += textwrap.wrap(reason, width, initial_indent=INDENT, subsequent_indent=INDENT)
    lines += ["", *_settings_lines(devices, width)]
    counts = Counter(view.attendance for view in devices)
    lines += ["", f"{len(devices)} devices: {', '.join(f'{count} {state}' for state, count in counts.most_common())}"]
    ran = Counter(_version(view.member) for view in devices if view.member.software)
    if len(ran) > 1 or "version" not in shown:
        lines += [f"versions: {', '.join(f'{version} on {count}' for version, count in ran.most_common())}"] * bool(ran)
    return lines


def _settings_lines(devices: tuple[DeviceView, ...], width: int) -> list[str]:
    """Return which settings the devices have, those with the same ones together, the most common first."""
    groups: dict[str, list[str]] = {}
    for view in devices:
        said = ", ".join(filter(None, (one_line(view.member.software, MAX_SOFTWARE), str(view.member.settings))))
        groups.setdefault(said or "not known", []).append(view.member.device)
    lines = []
    for said, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        some = ", ".join(names[:SHOWN_NAMES]) + (f" and {len(names) - SHOWN_NAMES} more" * (len(names) > SHOWN_NAMES))
        lines += textwrap.wrap(f"settings of {some}: {said}", width, subsequent_indent=INDENT)
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
        _version(member),
        *_scores(member.evaluated),
    ]


def _scores(found: DeviceEvaluation | None) -> tuple[str, str]:
    if found is None:
        return "-", "-"
    return score_text(found.loss, found.accuracy), score_text(found.own_loss, found.own_accuracy)


def _version(member: MemberRecord) -> str:
    return one_line(member.software.removeprefix("sparsyedge "), VERSION_WIDTH) or "-"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.{2 if count < 100e6 else 0}f}"


def _state(view: DeviceView, now_s: float) -> str:
    text: str = view.attendance
    if view.attendance == "offline" and view.member.seen_at is not None:
        text += f" {duration(max(0.0, now_s - view.member.seen_at))}"
    return f"{text:<{STATE_WIDTH}}"


def _doing(view: DeviceView) -> list[str]:
    """Return what the device does right now, with its figures."""
    now = view.activity
    if now is None or view.attendance == "offline":
        return []
    figures = {"loss {:.4g}": now.loss, "{:.1f} C": now.temperature_c, "battery {:.0f} %": now.battery_percent}
    return [", ".join((describe_activity(now), *(form.format(it) for form, it in figures.items() if it is not None)))]


def _reasons(member: MemberRecord) -> list[str]:
    """Return why it does not train or counts for less, its alarm, and its last refusal."""
    reasons = [f"unfit: {member.unfit}"] if member.unfit else []
    if member.quarantined_until:
        reasons.append(f"left out until round {member.quarantined_until}: {member.quarantine}")
    if member.data is not None and member.data.trouble:
        reasons.append(f"data in round {member.data.round}: {member.data}")
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
