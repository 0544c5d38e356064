"""Who is in the cohort of an open round: members that will not answer any more give their places to others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sparsyedge.coordinator.rounds.cohort import sample_cohort
from sparsyedge.coordinator.rounds.conduct import Cause, struck
from sparsyedge.coordinator.rounds.deadlines import patience_s
from sparsyedge.coordinator.rounds.events import Command, Quarantine, ReplaceMember
from sparsyedge.coordinator.rounds.grants import uploads_until
from sparsyedge.coordinator.rounds.stages import Open, RunState

__all__ = ["SILENT", "WASTED", "deadlines_of", "is_lost", "replace_members", "strike", "without"]

MAX_REPLACEMENTS = 3
"""How often every place of a cohort may change hands in one round, on average."""
SILENT = "it sent no update in its time"
WASTED = "its uploads stopped half-way and kept others waiting"

Value = TypeVar("Value")


def replace_members(state: RunState, stage: Open, now_s: float) -> tuple[RunState, tuple[Command, ...]]:
    """Give the places of members that will not answer any more to devices that are ready, as far as there are any."""
    commands: list[Command] = []
    for device in stage.cohort:
        if not is_lost(state, stage, device, now_s):
            continue
        spare = state.ready - set(stage.cohort) - stage.replaced
        plan = state.plan
        drawn = sample_cohort(spare, 1, seed=plan.seed, round_number=stage.round, policy=plan.policy)
        if not drawn or len(stage.replaced) >= MAX_REPLACEMENTS * len(stage.cohort):
            break
        if now_s >= stage.deadlines[device] and device in state.willing:
            state, silent = strike(state, device, "silent", SILENT)
            commands += silent
        cohort = tuple(sorted({*stage.cohort, *drawn} - {device}))
        stage = replace(
            stage,
            cohort=cohort,
            deadlines=without(stage.deadlines, device) | deadlines_of(state, drawn, now_s),
            replaced=stage.replaced | {device},
            granted=without(stage.granted, device),
        )
        commands.append(ReplaceMember(stage.round, cohort, stage.deadline_s, device, drawn[0]))
    return replace(state, stage=stage), tuple(commands)


def is_lost(state: RunState, stage: Open, device: str, now_s: float) -> bool:
    """Whether no update of this member is to be expected any more."""
    if device in stage.accepted or now_s < uploads_until(stage, device):
        return False
    return device in state.unfit or device in stage.failed or now_s >= stage.deadlines[device]


def strike(state: RunState, device: str, cause: Cause, reason: str) -> tuple[RunState, tuple[Command, ...]]:
    """Note that a device has failed in the present round; told where that puts it in quarantine."""
    before = state.conduct.get(device)
    after = struck(before, cause, reason, round_number=state.round)
    state = replace(state, conduct={**state.conduct, device: after})
    told = after.until_round and after != before
    return state, (Quarantine(device, after.until_round, reason),) if told else ()


def deadlines_of(state: RunState, cohort: Iterable[str], now_s: float) -> dict[str, float]:
    """Until when each of these devices is waited for."""
    fixed_s = state.plan.deadline_s
    return {
        device: now_s + (patience_s(state.times.get(device, ())) if fixed_s is None else fixed_s) for device in cohort
    }


def without(mapping: Mapping[str, Value], key: str) -> dict[str, Value]:
    """The mapping without one of its keys."""
    return {name: value for name, value in mapping.items() if name != key}
