"""The view of `fleet status`: one line per device, with its version and stage, and the reason below it."""

from __future__ import annotations

import textwrap
import time
import uuid
from collections.abc import Iterator

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.fleet import inbox
from sparsyedge.coordinator.rollout.plan import Progress, Rollout, Seen, advance
from sparsyedge.coordinator.rollout.rollout_file import RolloutFile
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.text import one_line

__all__ = ["as_lines", "heading", "looked_at"]

LISTEN_S = 2.0
QUIET_S = 0.5
INDENT = "    "
NAME_WIDTH, VERSION_WIDTH, STAGE_WIDTH = 20, 14, 12


def looked_at(authority: Authority, file: RolloutFile) -> tuple[Rollout, str]:
    """The last rollout with what devices say right now, and a note if the broker cannot be asked."""
    fleet = authority.settings.fleet
    rollout = file.read() or Rollout(fleet=fleet, bundle="", software="", state="done")
    with authority.ledger() as ledger:
        members = {one.device: Progress() for one in ledger.members() if one.revoked_at is None}
    known = {name: each for name, each in rollout.devices.items() if name in members}
    rollout = Rollout(
        **{name: getattr(rollout, name) for name in rollout.__struct_fields__ if name != "devices"},
        devices={**members, **known},
    )
    try:
        for seen in _statuses(authority):
            if seen.device in members:
                rollout, _ = advance(rollout, seen, time.time())
    except LinkError as error:
        return rollout, f"the broker cannot be asked, so this is as of the last rollout: {error}"
    return rollout, ""


def _statuses(authority: Authority) -> Iterator[Seen]:
    topics = Topics(authority.settings.fleet)
    link = authority.link(f"{topics.fleet}-look-{uuid.uuid4().hex[:12]}")
    link.subscribe(topics.status("+"))
    link.open(timeout_s=LISTEN_S)
    try:
        until_s = time.monotonic() + LISTEN_S
        while time.monotonic() < until_s:
            event = link.receive(QUIET_S)
            if isinstance(event, Received):
                message = inbox.read(topics, event)
                if isinstance(message, inbox.StatusChanged):
                    yield Seen(message.device, message.status)
    finally:
        link.close()


def heading(rollout: Rollout) -> list[str]:
    """What became of a rollout, in a sentence or two."""
    if not rollout.bundle:
        return ["there was no rollout yet"]
    kept = sum(each.is_kept for each in rollout.devices.values())
    line = f"rollout of sparsyedge {rollout.software}: {rollout.state}; {kept} of {len(rollout.devices)} devices run it"
    return [line, *([f"why: {rollout.reason}"] if rollout.reason else [])]


def as_lines(rollout: Rollout, *, width: int) -> list[str]:
    """A table for a terminal; reasons follow below their device."""
    if not rollout.devices:
        return ["no device is a member of this fleet yet"]
    names = max(NAME_WIDTH, *map(len, rollout.devices))
    lines = [f"{'device':<{names}} {'version':<{VERSION_WIDTH}} {'stage':<{STAGE_WIDTH}} {'wave':<8} state"]
    lines.append("-" * len(lines[0]))
    for name, each in sorted(rollout.devices.items()):
        version = one_line(each.software.removeprefix("sparsyedge "), VERSION_WIDTH) or "-"
        wave = "-" if each.wave is None else "canary" if each.wave == 0 else str(each.wave)
        there = "online" if each.online else "offline"
        stage = each.stage or "-"
        lines.append(f"{name:<{names}} {version:<{VERSION_WIDTH}} {stage:<{STAGE_WIDTH}} {wave:<8} {there}")
        for reason in (each.reason, f"alarm: {each.alarm}" if each.alarm else ""):
            if reason:
                lines += textwrap.wrap(one_line(reason), width, initial_indent=INDENT, subsequent_indent=INDENT)
    return lines
