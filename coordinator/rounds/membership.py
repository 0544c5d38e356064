"""Membership of an open round: ready devices replace members that will not answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparsyedge.coordinator.rounds.cohort import sample_cohort
from sparsyedge.coordinator.rounds.conduct import Cause, struck
from sparsyedge.coordinator.rounds.deadlines import FIRST_S, patience_s
from sparsyedge.coordinator.rounds.events import Command, Quarantine, ReplaceMember
from sparsyedge.coordinator.rounds.grants import release, uploads_until
from sparsyedge.coordinator.rounds.heap import heap_of, pop, push
from sparsyedge.coordinator.rounds.spares import Spares
from sparsyedge.coordinator.rounds.stages import Open, RunState, replace
from sparsyedge.coordinator.rounds.table import Table

__all__ = [
    "SILENT",
    "WASTED",
    "add_spare",
    "is_lost",
    "open_stage",
    "replace_members",
    "slowest_s",
    "strike",
    "suspect",
    "with_deadlines",
]

MAX_REPLACEMENTS = 3
"""Replacements allowed per cohort place in one round, on average."""
SILENT = "it sent no update in its time"
WASTED = "its uploads stopped half-way and kept others waiting"


# ---- the cohort and its deadlines ------------------------------------------------------------------------------------


def open_stage(
    state: RunState, cohort: Iterable[str], now_s: float, *, round_number: int, model: str, accepted: Mapping[str, str]
) -> Open:
    """A round that opens now; `accepted` holds the updates it already has if an earlier process opened it."""
    stage = Open(
        round=round_number,
        model=model,
        opened_s=now_s,
        deadlines=Table(),
        deadline_s=now_s,
        latest=0,
        due=None,
        accepted=Table(accepted),
        slowest_s=slowest_s(state, accepted),
    )
    return with_deadlines(state, stage, cohort, now_s)


def with_deadlines(state: RunState, stage: Open, cohort: Iterable[str], now_s: float) -> Open:
    """The round with this cohort, whose time begins now."""
    deadlines = {device: now_s + _time_of(state, device) for device in cohort}
    latest_s = max(deadlines.values(), default=stage.opened_s)
    return replace(
        stage,
        deadlines=Table(deadlines),
        deadline_s=latest_s,
        latest=sum(deadline_s == latest_s for deadline_s in deadlines.values()),
        due=heap_of((deadline_s, device) for device, deadline_s in deadlines.items()),
    )


def slowest_s(state: RunState, accepted: Iterable[str]) -> float:
    """How long the slowest of these devices took for its last update."""
    return max((state.times[device][-1] for device in accepted if device in state.times), default=0.0)


def _time_of(state: RunState, device: str) -> float:
    if state.plan.deadline_s is not None:
        return state.plan.deadline_s
    # Where devices take turns, their times are mostly waiting; by these, a slow machine would change the cohort.
    return FIRST_S if state.plan.takes_turns else patience_s(state.times.get(device, ()))


# ---- members that will not answer ------------------------------------------------------------------------------------


def is_lost(state: RunState, stage: Open, device: str, now_s: float) -> bool:
    """Whether to give up on an update from this member."""
    if device in stage.accepted or now_s < uploads_until(stage, device):
        return False
    return device in state.unfit or device in stage.failed or now_s >= stage.deadlines[device]


def suspect(stage: Open, device: str) -> Open:
    """Note that a member may be lost."""
    return replace(stage, suspects=stage.suspects.set(device, None)) if device in stage.deadlines else stage


def replace_members(state: RunState, stage: Open, now_s: float) -> tuple[RunState, tuple[Command, ...]]:
    """Replace members that will not answer, while ready devices are left."""
    stage = _suspect_overdue(stage, now_s)
    commands: list[Command] = []
    if stage.suspects:
        stage, spare = _next_spare(state, stage)
        # Without a spare device nothing can change, however many are suspects.
        for device in sorted(stage.suspects) if spare is not None else ():
            if not is_lost(state, stage, device, now_s):
                stage = _clear(state, stage, device, now_s)
                continue
            stage, spare = _next_spare(state, stage)
            if spare is None or len(stage.replaced) >= MAX_REPLACEMENTS * len(stage.deadlines):
                break
            if now_s >= stage.deadlines[device] and state.is_willing(device):
                state, silent = strike(state, device, "silent", SILENT)
                commands += silent
            stage = _substitute(state, stage, device, spare, now_s)
            commands.append(ReplaceMember(stage.round, stage.deadline_s, device, spare))
    return replace(state, stage=stage), tuple(commands)


def _suspect_overdue(stage: Open, now_s: float) -> Open:
    """Suspect the members whose deadline has passed."""
    due, suspects = stage.due, stage.suspects
    while due is not None and due.least[0] <= now_s:
        deadline_s, device = due.least
        due = pop(due)
        if stage.deadlines.get(device) == deadline_s and device not in stage.accepted:
            suspects = suspects.set(device, None)
    return stage if due is stage.due else replace(stage, due=due, suspects=suspects)


def _clear(state: RunState, stage: Open, device: str, now_s: float) -> Open:
    """Suspect a member no longer, unless it only has an upload to finish."""
    waited_for = device in state.unfit or device in stage.failed or now_s >= stage.deadlines[device]
    if waited_for and device not in stage.accepted:
        return stage
    return replace(stage, suspects=stage.suspects.without(device))


def _substitute(state: RunState, stage: Open, device: str, spare: str, now_s: float) -> Open:
    """The round with a spare device in the place of a member."""
    deadline_s = now_s + _time_of(state, spare)
    deadlines = stage.deadlines
    latest_s, latest = stage.deadline_s, stage.latest - (deadlines[device] == stage.deadline_s)
    deadlines = deadlines.without(device).set(spare, deadline_s)
    if deadline_s > latest_s:
        latest_s, latest = deadline_s, 1
    elif deadline_s == latest_s:
        latest += 1
    elif latest == 0:
        latest_s = max(deadlines.values())
        latest = sum(each_s == latest_s for each_s in deadlines.values())
    return replace(
        release(stage, device),
        deadlines=deadlines,
        deadline_s=latest_s,
        latest=latest,
        due=push(stage.due, (deadline_s, spare)),
        replaced=stage.replaced.set(device, spare),
        suspects=stage.suspects.without(device),
    )


# ---- devices that could take a place ---------------------------------------------------------------------------------


def add_spare(state: RunState, stage: Open, device: str) -> Open:
    """Note that a device has become ready."""
    if stage.spares is None or not _is_spare(state, stage, device):
        return stage
    spares = stage.spares.add(device, seed=state.plan.seed, round_number=stage.round)
    return stage if spares is stage.spares else replace(stage, spares=spares)


def _is_spare(state: RunState, stage: Open, device: str) -> bool:
    return state.is_ready(device) and device not in stage.deadlines and device not in stage.replaced


def _next_spare(state: RunState, stage: Open) -> tuple[Open, str | None]:
    """The ready device that takes the next free place; None if there is none."""
    plan = state.plan
    if plan.policy_of_spares != "uniform":
        # Whose turn it is depends on all that are spare, so this policy goes through them for every replacement.
        spare = frozenset(device for device in state.ready if _is_spare(state, stage, device))
        drawn = sample_cohort(spare, 1, seed=plan.seed, round_number=stage.round, policy=plan.policy)
        return stage, drawn[0] if drawn else None
    spares = stage.spares
    if spares is None:
        spare = frozenset(device for device in state.ready if _is_spare(state, stage, device))
        spares = Spares.of(spare, seed=plan.seed, round_number=stage.round)
    while (first := spares.first) is not None and not _is_spare(state, stage, first):
        spares = spares.drop_first()
    return stage if spares is stage.spares else replace(stage, spares=spares), first


# ---- conduct ---------------------------------------------------------------------------------------------------------


def strike(state: RunState, device: str, cause: Cause, reason: str) -> tuple[RunState, tuple[Command, ...]]:
    """Record a failure in the current round; returns a Quarantine command if this one puts the device there."""
    before = state.conduct.get(device)
    after = struck(before, cause, reason, round_number=state.round)
    state = replace(state, conduct=state.conduct.set(device, after))
    told = after.until_round and after != before
    return state, (Quarantine(device, after.until_round, reason),) if told else ()
