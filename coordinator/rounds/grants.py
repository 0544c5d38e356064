"""Decides who may upload now. Places are limited; a device that wastes one goes to the back of the queue. Pure.

A holder loses its place if another device needs it and the holder has sent nothing new for half a minute, or is slower
than the slowest link we support. Only missing chunks count: repeating an offer or a chunk gains nothing. Nobody loses a
place while we check the upload, and no offer of that device counts before its verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsyedge.coordinator.rounds.events import OfferReceived
from sparsyedge.coordinator.rounds.stages import Granted, Open, Plan, replace

__all__ = [
    "ASKED_S",
    "SLOWEST_BYTES_PER_S",
    "UPLOAD_IDLE_S",
    "Asked",
    "again_s",
    "ask",
    "asked_until",
    "heard",
    "is_granted",
    "left",
    "release",
    "uploads_until",
    "verify",
]

UPLOAD_IDLE_S = 30.0
SLOWEST_BYTES_PER_S = 64 * 1024
ASKS_PER_S = 100.0
"""How often all devices that wait may ask again, together: repeats are insurance against lost messages."""
LEAST_AGAIN_S, MOST_AGAIN_S = 10.0, 600.0
ASKED_S = 20.0
"""A device of a small round asks again within 15 s. After this much silence it no longer counts as waiting."""
LATEST = 1.5
"""Devices ask again after half to one and a half times what they were told."""


@dataclass(frozen=True)
class Asked:
    """Outcome of an offer."""

    stage: Open
    granted: bool
    reason: str = ""
    """Why the device must wait, if it is to blame."""
    lost: tuple[str, ...] = ()
    """Devices that lost their places to this offer."""


def again_s(stage: Open) -> float:
    """How long a device that waits for a place need not ask again."""
    missing = len(stage.deadlines) - len(stage.accepted)
    return min(MOST_AGAIN_S, max(LEAST_AGAIN_S, missing / ASKS_PER_S))


def asked_until(stage: Open, now_s: float) -> float:
    """Until when a device that asks now counts as waiting if it stays silent."""
    return now_s + ASKED_S + LATEST * (again_s(stage) - LEAST_AGAIN_S)


def ask(plan: Plan, stage: Open, event: OfferReceived, now_s: float) -> Asked:
    """Give the device a place to upload. If none is free it waits and asks again."""
    device, size = event.device, event.offer.update.bytes
    held = stage.granted.get(device)
    if held is not None and held.verifying:
        return Asked(stage, False)
    lost: tuple[str, ...] = ()
    if not _has_room(plan, stage, held, size) and now_s >= stage.used_until_s:
        stage, lost = _drop_wasted(stage, device, now_s)
    if held is None and _must_wait(stage, device, now_s):
        reason = (
            f"{stage.wasted[device]} of this device's uploads in round {stage.round} stopped half-way and kept others "
            f"waiting; those go first"
        )
        return Asked(_with_asked(stage, device, now_s), False, reason, lost)
    if not _has_room(plan, stage, held, size):
        # A holder goes to the end of the line.
        granted = stage.granted if held is None else stage.granted.without(device).set(device, held)
        return Asked(replace(_with_asked(stage, device, now_s), granted=granted), False, lost=lost)
    place = Granted(event.offer.update.sha256, now_s, size, since_s=now_s)
    if held is not None:
        # A new offer does not reset the clocks of the place.
        place = replace(place, heard_s=held.heard_s, since_s=held.since_s)
    stage = replace(
        stage,
        granted=stage.granted.without(device).set(device, place),
        granted_bytes=stage.granted_bytes + size - (held.bytes if held else 0),
        used_until_s=min(stage.used_until_s, _used_until(place)),
        asked=stage.asked.without(device),
    )
    return Asked(stage, True, lost=lost)


def heard(stage: Open, device: str, now_s: float) -> Open:
    """Note that a missing chunk arrived."""
    held = stage.granted.get(device)
    if held is None or held.heard_s == now_s:
        return stage
    place = Granted(held.update, now_s, held.bytes, held.since_s, held.verifying)
    return replace(stage, granted=stage.granted.set(device, place))


def is_granted(stage: Open, device: str, update: str) -> bool:
    """Whether the device may upload this update."""
    held = stage.granted.get(device)
    return held is not None and held.update == update


def verify(stage: Open, device: str) -> Open:
    """Note that the whole upload of a device is here and being checked."""
    place = replace(stage.granted[device], verifying=True)
    return replace(stage, granted=stage.granted.set(device, place), verifying=stage.verifying + 1)


def release(stage: Open, device: str) -> Open:
    """Take a place back, if the device has one."""
    held = stage.granted.get(device)
    if held is None:
        return stage
    return replace(
        stage,
        granted=stage.granted.without(device),
        granted_bytes=stage.granted_bytes - held.bytes,
        verifying=stage.verifying - held.verifying,
    )


def uploads_until(stage: Open, device: str) -> float:
    """When a silent device stops counting as uploading or queued; the round's opening if it was neither."""
    held = stage.granted.get(device)
    if held is not None:
        return _used_until(held)
    return stage.asked.get(device, stage.opened_s)


def _with_asked(stage: Open, device: str, now_s: float) -> Open:
    return replace(stage, asked=stage.asked.set(device, asked_until(stage, now_s)))


def left(stage: Open, device: str, now_s: float) -> Open:
    """Note that a device went offline: if it waits for a place, it does not for long."""
    until_s = stage.asked.get(device)
    if until_s is None or until_s <= now_s + ASKED_S:
        return stage
    return replace(stage, asked=stage.asked.set(device, now_s + ASKED_S))


def _drop_wasted(stage: Open, device: str, now_s: float) -> tuple[Open, tuple[str, ...]]:
    """Take back the wasted places of all other devices."""
    ends = [(name, _used_until(held)) for name, held in stage.granted.items()]
    lost = tuple(name for name, until_s in ends if now_s >= until_s and name != device)
    wasted = stage.wasted
    for name in lost:
        stage = release(stage, name)
        wasted = wasted.set(name, wasted.get(name, 0) + 1)
    used_until_s = min((until_s for _, until_s in ends if now_s < until_s), default=math.inf)
    if device in stage.granted:
        used_until_s = min(used_until_s, _used_until(stage.granted[device]))
    return replace(stage, wasted=wasted, used_until_s=used_until_s), lost


def _has_room(plan: Plan, stage: Open, held: Granted | None, size: int) -> bool:
    """Whether an update fits beside those of others in flight; one larger than the limit goes alone."""
    others, their_bytes = len(stage.granted), stage.granted_bytes
    if held is not None:
        others, their_bytes = others - 1, their_bytes - held.bytes
    return not others or their_bytes + size <= plan.upload_bytes


def _used_until(granted: Granted) -> float:
    if granted.verifying:
        return math.inf
    life_s = 2 * UPLOAD_IDLE_S + granted.bytes / SLOWEST_BYTES_PER_S
    return min(granted.heard_s + UPLOAD_IDLE_S, granted.since_s + life_s)


def _must_wait(stage: Open, device: str, now_s: float) -> bool:
    """Whether a device that wasted fewer places is waiting."""
    own = stage.wasted.get(device, 0)
    return own > 0 and any(
        name != device and now_s <= until_s and stage.wasted.get(name, 0) < own for name, until_s in stage.asked.items()
    )
