"""Decides who may upload now. Places are limited; a device that wastes one goes to the back of the queue. Pure.

A holder loses its place if another device needs it and the holder has sent nothing new for half a minute, or is slower
than the slowest link we support. Only missing chunks count: repeating an offer or a chunk gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsyedge.coordinator.rounds.events import OfferReceived
from sparsyedge.coordinator.rounds.stages import Granted, Open, Plan
from sparsyedge.edge.protocol.messages import Blob

__all__ = ["ASKED_S", "SLOWEST_BYTES_PER_S", "UPLOAD_IDLE_S", "Asked", "ask", "heard", "uploads_until"]

UPLOAD_IDLE_S = 30.0
SLOWEST_BYTES_PER_S = 64 * 1024
ASKED_S = 15.0
"""A waiting device asks again within five seconds. After this much silence it no longer counts as waiting."""


@dataclass(frozen=True)
class Asked:
    """Outcome of an offer."""

    stage: Open
    granted: bool
    reason: str = ""
    """Why the device must wait, if it is to blame."""
    lost: tuple[str, ...] = ()
    """Devices that lost their places to this offer."""


def ask(plan: Plan, stage: Open, event: OfferReceived, now_s: float) -> Asked:
    """Give the device a place to upload. If none is free it waits and asks again."""
    device, update = event.device, event.offer.update
    others = {name: granted for name, granted in stage.granted.items() if name != device}
    lost: tuple[str, ...] = ()
    if not _has_room(plan, others, update):
        lost = tuple(name for name, granted in others.items() if _is_wasted(granted, now_s))
        others = {name: granted for name, granted in others.items() if name not in lost}
    wasted = {**stage.wasted, **{name: stage.wasted.get(name, 0) + 1 for name in lost}}
    asked = {**{name: at for name, at in stage.asked.items() if now_s - at <= ASKED_S}, device: now_s}
    held = stage.granted.get(device)
    if held is None and _must_wait(device, wasted, asked):
        stage = replace(stage, granted=others, wasted=wasted, asked=asked)
        reason = (
            f"{wasted[device]} of this device's uploads in round {stage.round} stopped half-way and kept others "
            f"waiting; those go first"
        )
        return Asked(stage, False, reason, lost)
    if not _has_room(plan, others, update):
        kept = others if held is None else {**others, device: held}
        return Asked(replace(stage, granted=kept, wasted=wasted, asked=asked), False, lost=lost)
    place = Granted(update.sha256, now_s, update.bytes, since_s=now_s)
    if held is not None:
        # A new offer does not reset the clocks of the place.
        place = replace(place, heard_s=held.heard_s, since_s=held.since_s)
    del asked[device]
    return Asked(replace(stage, granted={**others, device: place}, wasted=wasted, asked=asked), True, lost=lost)


def heard(stage: Open, device: str, now_s: float) -> Open:
    """Note that a missing chunk arrived."""
    if device not in stage.granted:
        return stage
    return replace(stage, granted={**stage.granted, device: replace(stage.granted[device], heard_s=now_s)})


def uploads_until(stage: Open, device: str) -> float:
    """When a silent device stops counting as uploading or queued; the round's opening if it was neither."""
    if device in stage.granted:
        return _used_until(stage.granted[device])
    return stage.asked[device] + ASKED_S if device in stage.asked else stage.opened_s


def _has_room(plan: Plan, others: Mapping[str, Granted], update: Blob) -> bool:
    """Whether the update fits beside those in flight; an update larger than the limit goes alone."""
    return not others or sum(granted.bytes for granted in others.values()) + update.bytes <= plan.upload_bytes


def _is_wasted(granted: Granted, now_s: float) -> bool:
    return now_s >= _used_until(granted)


def _used_until(granted: Granted) -> float:
    life_s = 2 * UPLOAD_IDLE_S + granted.bytes / SLOWEST_BYTES_PER_S
    return min(granted.heard_s + UPLOAD_IDLE_S, granted.since_s + life_s)


def _must_wait(device: str, wasted: Mapping[str, int], asked: Mapping[str, float]) -> bool:
    """Whether a device that wasted fewer places is waiting."""
    own = wasted.get(device, 0)
    return own > 0 and any(wasted.get(name, 0) < own for name in asked if name != device)
