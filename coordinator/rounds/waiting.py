"""Decides how long an open round with enough updates still waits, and for which members. Pure.

The round waits for each member until that member's deadline, with these exceptions:

- It does not wait for a member that is unfit or whose update was refused, unless that member uploads another.
- With learned deadlines, an offline member gets a minute, and a member still uploading at its deadline may finish.
- Once all but a quarter of the cohort, or all but one, have answered, the slowest answer sets the time for the rest.
  With learned deadlines, a device without a past gets five times as long. A device that missed one of the last ten
  rounds is on probation: it gets a quarter more than the slowest answer, or than its own usual time, whichever is
  longer. So a silent device holds up a run for a whole deadline once, not in every round.
- A full round waits only for uploads in flight, until a quarter more than the slowest answer's time has passed.

A round that waits for one member need not look at the others. So it remembers one, and looks for another only when that
one has answered or used up its time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

from sparsyedge.coordinator.rounds.deadlines import (
    OFFLINE_GRACE_S,
    PROBATION_MARGIN,
    newcomer_s,
    on_probation,
    probation_s,
)
from sparsyedge.coordinator.rounds.grants import uploads_until
from sparsyedge.coordinator.rounds.stages import Open, RunState

__all__ = ["has_enough", "is_full", "longest_wait", "still_waits", "waits_for", "waits_until", "wanted"]


def is_full(state: RunState, stage: Open) -> bool:
    """Whether the round has all the updates it wants."""
    return len(stage.accepted) >= wanted(state, stage)


def has_enough(state: RunState, stage: Open) -> bool:
    """Whether the round may close without further updates."""
    return len(stage.accepted) >= min(state.plan.min_updates, wanted(state, stage))


def waits_until(state: RunState, stage: Open) -> float:
    """When the round closes if every member stays silent; infinity while it has too few updates."""
    return longest_wait(state, stage)[0] if has_enough(state, stage) else math.inf


def waits_for(state: RunState, stage: Open, device: str) -> float:
    """When the round stops waiting for this member, as things stand; a round with too few updates waits for all."""
    if not has_enough(state, stage):
        return stage.deadline_s
    return (_waits_for_upload if is_full(state, stage) else _waits_for_update)(state, stage, device)


def wanted(state: RunState, stage: Open) -> int:
    """How many updates make the round full."""
    return min(state.plan.cohort_size, len(stage.deadlines))


def still_waits(state: RunState, stage: Open, now_s: float) -> bool:
    """Whether a round with enough updates waits for the member that it waited for before."""
    device = stage.awaited
    if device not in stage.deadlines or device in stage.accepted:
        return False
    return now_s < waits_for(state, stage, device)


def longest_wait(state: RunState, stage: Open) -> tuple[float, str]:
    """Until when a round with enough updates waits, and for whom; goes through the members."""
    wait = _waits_for_update
    members: Iterable[str] = stage.deadlines
    if is_full(state, stage):
        wait, members = _waits_for_upload, {*stage.granted, *stage.asked}
    until_s, _, device = max(
        # Members often have the same deadline, and answer in the order of their names. Hashes shuffle them: then the
        # one that we remember is rarely the next to answer.
        (
            (wait(state, stage, device), zlib.crc32(device.encode()), device)
            for device in members
            if device in stage.deadlines and device not in stage.accepted
        ),
        default=(stage.opened_s, 0, ""),
    )
    return until_s, device


def _waits_for_upload(state: RunState, stage: Open, device: str) -> float:
    """When a full round stops waiting for this member."""
    if on_probation(state.missed, device, round_number=stage.round):
        return stage.opened_s
    return min(stage.deadline_s, stage.opened_s + PROBATION_MARGIN * stage.slowest_s, uploads_until(stage, device))


def _waits_for_update(state: RunState, stage: Open, device: str) -> float:
    """When a round that is not full stops waiting for this member."""
    deadline_s, uploads_s, times = stage.deadlines[device], uploads_until(stage, device), state.times.get(device, ())
    if device in state.unfit or device in stage.failed:
        return min(deadline_s, uploads_s)
    missing = len(stage.deadlines) - len(stage.accepted)
    few_missing = missing <= max(1, len(stage.deadlines) // 4) and not state.plan.takes_turns
    if few_missing and on_probation(state.missed, device, round_number=stage.round):
        return min(deadline_s, stage.opened_s + probation_s(times, stage.slowest_s))
    if state.plan.deadline_s is not None:
        return deadline_s
    if few_missing and not times:
        deadline_s = min(deadline_s, stage.opened_s + newcomer_s(stage.slowest_s))
    if device not in state.online:
        deadline_s = min(deadline_s, max(stage.opened_s, state.left_s.get(device, 0.0)) + OFFLINE_GRACE_S)
    return max(deadline_s, uploads_s)
