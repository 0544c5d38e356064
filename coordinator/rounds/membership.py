"""Membership of an open round: ready devices replace members that will not answer. Pure."""

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
"""Replacements allowed per cohort place in one round, on average."""
SILENT = "it sent no update in its time"
WASTED = "its uploads stopped half-way and kept others waiting"

Value = TypeVar("Value")


def replace_members(state: RunState, stage: Open, now_s: float) -> tuple[RunState, tuple[Command, ...]]:
    """Replace members that will not answer, while ready devices are left."""
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
    """Whether to give up on an update from this member."""
    if device in stage.accepted or now_s < uploads_until(stage, device):
        return False
    return device in state.unfit or device in stage.failed or now_s >= stage.deadlines[device]


def strike(state: RunState, device: str, cause: Cause, reason: str) -> tuple[RunState, tuple[Command, ...]]:
    """Record a failure in the current round; returns a Quarantine command if this one puts the device there."""
    before = state.conduct.get(device)
    after = struck(before, cause, reason, round_number=state.round)
    state = replace(state, conduct={**state.conduct, device: after})
    told = after.until_round and after != before
    return state, (Quarantine(device, after.until_round, reason),) if told else ()


def deadlines_of(state: RunState, cohort: Iterable[str], now_s: float) -> dict[str, float]:
    """When the round stops waiting for each of these devices."""
    fixed_s = state.plan.deadline_s
    return {
        device: now_s + (patience_s(state.times.get(device, ())) if fixed_s is None else fixed_s) for device in cohort
    }


def without(mapping: Mapping[str, Value], key: str) -> dict[str, Value]:
    """Copy the mapping without one key."""
    return {name: value for name, value in mapping.items() if name != key}
