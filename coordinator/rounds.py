"""The rounds of one run as a pure state machine: `(state, event, now_s) -> (state, commands)`. No I/O, no clock.

    Waiting -> Open       enough devices are online
    Open    -> Closing    cohort_size updates are in, or nobody is waited for any more and at least min_updates are
    Open    -> Open       the last deadline came with fewer: extended, absent members replaced
    Open    -> Failed     it was extended too often
    Closing -> Waiting    the model is ready; on to Open at once where enough devices are online and nobody paused
    Closing -> Finished   the model is ready, and it was the last round or somebody asked to stop

The owner feeds what happened and carries out the commands in order. What the rounds promise:

- The cohort is drawn from the devices that are online when the round opens; who comes later takes part in the next one.
- One update is accepted per (round, device). The same hash offered again is answered `Accept` again, even just after
  the round has closed; another hash is refused.
- A round that has `cohort_size` updates closes at once; with over-selection more devices than that are asked.
- Every member has a deadline of its own, learned from its past, unless the user set one for all. A round with at least
  min_updates waits until every other member has answered, has passed its deadline or, where deadlines are learned, has
  been offline for a minute.
- Time comes before events: what arrives after the deadline finds the round closed, even when nobody ticked in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sparsyedge.coordinator.cohort import sample_cohort
from sparsyedge.coordinator.deadlines import OFFLINE_GRACE_S, patience_s, remember, unanswered_s
from sparsyedge.coordinator.events import (
    Accept,
    ChunkReceived,
    CloseRound,
    Command,
    DeviceOffline,
    DeviceOnline,
    Event,
    ExtendRound,
    FailRun,
    FinishRun,
    GrantUpload,
    Interrupted,
    ModelReady,
    OfferReceived,
    OpenRound,
    PauseRequested,
    Refuse,
    ResumeRequested,
    StopRequested,
    Tick,
    UpdateInvalid,
    UpdateVerified,
    UploadComplete,
    VerifyUpdate,
)
from sparsyedge.coordinator.records import Progress
from sparsyedge.coordinator.stages import Closing, Failed, Finished, Granted, Open, Plan, RunState, Stage, Waiting

__all__ = ["advance", "begin", "restore"]

MAX_EXTENSIONS = 3
UPLOAD_IDLE_S = 60.0
"""A granted upload that sends nothing for so long gives its place to another device when places are short."""

Value = TypeVar("Value")
Outcome = tuple[RunState, tuple[Command, ...]]


def begin(plan: Plan, model: str) -> RunState:
    """The state before round 1, which starts from `model`."""
    return RunState(plan, Waiting(1, model))


def restore(
    plan: Plan, model: str, progress: Progress, now_s: float, *, times: Mapping[str, tuple[float, ...]] | None = None
) -> RunState:
    """The state of a run that was cut short, as its store tells it; an open round gets its whole time again.

    `times` are what each device needed for its last updates. Where the last thing was a round's end, the owner feeds
    ModelReady, as it does after every round.
    """
    times = times or {}
    state = RunState(
        plan,
        Closing(progress.closed_round),
        closed_round=progress.closed_round,
        closed_accepted=progress.closed_accepted,
    )
    if progress.open is not None:
        stage = Open(
            round=progress.open.round,
            model=model,
            cohort=progress.open.cohort,
            opened_s=now_s,
            deadlines=_deadlines(replace(state, times=times), progress.open.cohort, now_s),
            accepted=progress.open.accepted,
        )
        return replace(state, stage=stage, times=times)
    state = replace(state, times=times)
    return state if progress.closed_round else replace(state, stage=Waiting(1, model))


def advance(state: RunState, event: Event, now_s: float) -> Outcome:
    """What the event makes of the run, and what is to be done about it; `now_s` never falls between calls."""
    state, due = _pass_time(state, now_s)
    state, commands = _handle(state, event, now_s)
    return state, due + commands


def _handle(state: RunState, event: Event, now_s: float) -> Outcome:
    match event:
        case DeviceOnline():
            online = {**state.online, event.device: event.boot_id}
            return _open_if_enough(replace(state, online=online), now_s)
        case DeviceOffline():
            return _take_offline(state, event, now_s), ()
        case OfferReceived():
            return _answer_offer(state, event, now_s)
        case ChunkReceived():
            return _note_chunk(state, event, now_s), ()
        case UploadComplete():
            granted = _is_granted(state, event.device, event.update)
            return state, (VerifyUpdate(event.device, event.update),) if granted else ()
        case UpdateVerified():
            return _accept(state, event, now_s)
        case UpdateInvalid():
            return _drop_invalid(state, event)
        case ModelReady():
            return _next_round(state, event, now_s)
        case StopRequested():
            state = replace(state, stopping=True)
            return _finish(state) if isinstance(state.stage, Waiting) else (state, ())
        case PauseRequested():
            return replace(state, paused=True), ()
        case ResumeRequested():
            return _open_if_enough(replace(state, paused=False), now_s)
        case Interrupted():
            return (state, ()) if isinstance(state.stage, Finished | Failed) else _finish(state)
        case Tick():
            return state, ()


def _pass_time(state: RunState, now_s: float) -> Outcome:
    """Apply deadlines that have passed."""
    stage, plan = state.stage, state.plan
    if not isinstance(stage, Open):
        return state, ()
    if len(stage.accepted) >= _wanted(plan, stage):
        # Only after a restart: the coordinator died between the last update and the round's end.
        return _close(state, stage, now_s)
    if len(stage.accepted) >= plan.min_updates and now_s >= _waits_until(state, stage):
        return _close(state, stage, now_s)
    if now_s < stage.deadline_s:
        return state, ()
    if state.stopping:
        return _finish(state)
    if stage.extensions == MAX_EXTENSIONS:
        return _fail(state, stage)
    return _extend(state, stage, now_s)


def _wanted(plan: Plan, stage: Open) -> int:
    """How many updates close a round at once."""
    return min(plan.cohort_size, len(stage.cohort))


def _waits_until(state: RunState, stage: Open) -> float:
    """Until when somebody is waited for, given that enough updates are in."""
    return max(
        (_waits_for(state, stage, device) for device in stage.cohort if device not in stage.accepted),
        default=stage.opened_s,
    )


def _waits_for(state: RunState, stage: Open, device: str) -> float:
    """A member's own deadline; less for one that is gone, unless the user set the deadline."""
    deadline_s = stage.deadlines[device]
    if state.plan.deadline_s is not None or device in state.online:
        return deadline_s
    return min(deadline_s, max(stage.opened_s, state.left_s.get(device, 0.0)) + OFFLINE_GRACE_S)


def _deadlines(state: RunState, cohort: Iterable[str], now_s: float) -> dict[str, float]:
    fixed_s = state.plan.deadline_s
    return {
        device: now_s + (patience_s(state.times.get(device, ())) if fixed_s is None else fixed_s) for device in cohort
    }


def _open_if_enough(state: RunState, now_s: float) -> Outcome:
    """Open the round that waits, where enough devices are online for it."""
    stage, plan = state.stage, state.plan
    if not isinstance(stage, Waiting) or state.paused:
        return state, ()
    if len(state.online) < plan.devices_to_open(stage.round):
        return state, ()
    cohort = sample_cohort(
        state.online,
        plan.asked,
        seed=plan.seed,
        round_number=stage.round,
        shares=plan.shares,
        policy=plan.policy,
    )
    opened = Open(
        round=stage.round,
        model=stage.model,
        cohort=cohort,
        opened_s=now_s,
        deadlines=_deadlines(state, cohort, now_s),
    )
    return replace(state, stage=opened), (OpenRound(opened.round, cohort, opened.deadline_s),)


def _take_offline(state: RunState, event: DeviceOffline, now_s: float) -> RunState:
    """Forget a device that left; its upload keeps its place, since a connection is often back within seconds."""
    if state.online.get(event.device) != event.boot_id:
        return state
    return replace(state, online=_without(state.online, event.device), left_s={**state.left_s, event.device: now_s})


def _answer_offer(state: RunState, offer: OfferReceived, now_s: float) -> Outcome:
    stage = state.stage
    if offer.run == state.plan.run and _accepted_hash(state, offer.device, offer.round) == offer.update:
        return state, (Accept(offer.device, offer.round, offer.update, again=True),)
    reason = _reason_to_refuse(state.plan, stage, offer)
    if reason is not None or not isinstance(stage, Open):
        return state, (Refuse(offer.device, offer.round, offer.update, reason or _describe(stage), run=offer.run),)
    stage = _grant(state.plan, stage, offer, now_s)
    if offer.device not in stage.granted:
        return state, ()
    return replace(state, stage=stage), (GrantUpload(offer.device, offer.update),)


def _accepted_hash(state: RunState, device: str, round_number: int) -> str | None:
    """The hash that was accepted from the device in the open round or in the one before."""
    if isinstance(state.stage, Open) and state.stage.round == round_number:
        return state.stage.accepted.get(device)
    return state.closed_accepted.get(device) if state.closed_round == round_number else None


def _reason_to_refuse(plan: Plan, stage: Stage, offer: OfferReceived) -> str | None:
    if offer.run != plan.run:
        return f"the update is for run {offer.run}, the fleet works on run {plan.run}"
    if not isinstance(stage, Open) or stage.round != offer.round:
        return f"round {offer.round} is not open: {_describe(stage)}"
    if offer.device not in stage.cohort:
        return f"device {offer.device} is not in the cohort of round {stage.round}"
    if offer.device in stage.accepted:
        return (
            f"update {stage.accepted[offer.device][:12]} of device {offer.device} is already accepted "
            f"for round {stage.round}, this one is {offer.update[:12]}"
        )
    if offer.base != stage.model:
        return f"the update starts from model {offer.base[:12]}, round {stage.round} from {stage.model[:12]}"
    if offer.bytes > plan.max_update_bytes:
        return f"the update has {offer.bytes} bytes, at most {plan.max_update_bytes} are allowed for this model"
    return None


def _describe(stage: Stage) -> str:
    match stage:
        case Waiting():
            return f"round {stage.round} waits for devices"
        case Open():
            return f"round {stage.round} is"
        case Closing():
            return f"round {stage.round} has just closed"
        case Finished():
            return "the run is finished"
        case Failed():
            return "the run has failed"


def _grant(plan: Plan, stage: Open, offer: OfferReceived, now_s: float) -> Open:
    """Give the device a place to upload, or leave its offer unanswered while all are taken: it will ask again."""
    others = _without(stage.granted, offer.device)
    if not _has_room(plan, others, offer):
        others = {device: granted for device, granted in others.items() if now_s - granted.heard_s < UPLOAD_IDLE_S}
    if not _has_room(plan, others, offer):
        return stage
    return replace(stage, granted={**others, offer.device: Granted(offer.update, now_s, offer.bytes)})


def _has_room(plan: Plan, others: Mapping[str, Granted], offer: OfferReceived) -> bool:
    """Whether the update fits beside those under way; one that is larger than all the room goes alone."""
    return not others or sum(granted.bytes for granted in others.values()) + offer.bytes <= plan.upload_bytes


def _note_chunk(state: RunState, event: ChunkReceived, now_s: float) -> RunState:
    stage = state.stage
    if not isinstance(stage, Open) or event.device not in stage.granted:
        return state
    granted = replace(stage.granted[event.device], heard_s=now_s)
    return replace(state, stage=replace(stage, granted={**stage.granted, event.device: granted}))


def _is_granted(state: RunState, device: str, update: str) -> bool:
    stage = state.stage
    return isinstance(stage, Open) and device in stage.granted and stage.granted[device].update == update


def _accept(state: RunState, event: UpdateVerified, now_s: float) -> Outcome:
    stage = state.stage
    if not isinstance(stage, Open) or not _is_granted(state, event.device, event.update):
        return state, ()
    stage = replace(
        stage,
        granted=_without(stage.granted, event.device),
        accepted={**stage.accepted, event.device: event.update},
    )
    accept = Accept(event.device, stage.round, event.update)
    state = replace(state, times=remember(state.times, event.device, now_s - stage.opened_s))
    if len(stage.accepted) < _wanted(state.plan, stage):
        return replace(state, stage=stage), (accept,)
    state, commands = _close(state, stage, now_s)
    return state, (accept, *commands)


def _drop_invalid(state: RunState, event: UpdateInvalid) -> Outcome:
    stage = state.stage
    if not isinstance(stage, Open) or not _is_granted(state, event.device, event.update):
        return state, ()
    refuse = Refuse(event.device, stage.round, event.update, event.reason, run=state.plan.run)
    return replace(state, stage=replace(stage, granted=_without(stage.granted, event.device))), (refuse,)


def _close(state: RunState, stage: Open, now_s: float) -> Outcome:
    if len(stage.accepted) < _wanted(state.plan, stage):
        # Nobody knows how long they would have needed, only that it is longer: they get longer next time.
        for device in stage.cohort:
            if device in state.online and device not in stage.accepted:
                state = replace(state, times=remember(state.times, device, unanswered_s(now_s - stage.opened_s)))
    closed = replace(state, stage=Closing(stage.round), closed_round=stage.round, closed_accepted=dict(stage.accepted))
    return closed, (CloseRound(stage.round, tuple(sorted(stage.accepted))),)


def _extend(state: RunState, stage: Open, now_s: float) -> Outcome:
    """Give the round another deadline, with devices that are there in the places of members that are not."""
    absent = [device for device in stage.cohort if device not in stage.accepted and device not in state.online]
    spare = set(state.online) - set(stage.cohort)
    plan = state.plan
    substitutes = sample_cohort(spare, len(absent), seed=plan.seed, round_number=stage.round, policy=plan.policy)
    # An absent member that nobody can replace stays: it may still come back.
    cohort = tuple(sorted({*stage.cohort, *substitutes} - set(absent[: len(substitutes)])))
    extended = replace(
        stage,
        cohort=cohort,
        deadlines=_deadlines(state, cohort, now_s),
        extensions=stage.extensions + 1,
        granted={device: granted for device, granted in stage.granted.items() if device in cohort},
    )
    command = ExtendRound(extended.round, cohort, extended.deadline_s, extended.extensions)
    return replace(state, stage=extended), (command,)


def _fail(state: RunState, stage: Open) -> Outcome:
    present = sum(device in state.online for device in stage.cohort)
    fixed_s = state.plan.deadline_s
    deadlines = "deadlines of its devices" if fixed_s is None else f"deadlines of {fixed_s:g} s"
    reason = (
        f"round {stage.round} of run {state.plan.run} has {len(stage.accepted)} of {state.plan.min_updates} updates "
        f"that it needs, after {stage.extensions + 1} {deadlines}, and {present} of the "
        f"{len(stage.cohort)} devices in its cohort are online; look at the devices' logs, or start a new run with a "
        f"lower `min_updates` or a longer `deadline_s`"
    )
    return replace(state, stage=Failed(reason)), (FailRun(reason),)


def _next_round(state: RunState, event: ModelReady, now_s: float) -> Outcome:
    stage = state.stage
    if not isinstance(stage, Closing):
        return state, ()
    if stage.round == state.plan.rounds or state.stopping:
        return _finish(state)
    return _open_if_enough(replace(state, stage=Waiting(stage.round + 1, event.model)), now_s)


def _finish(state: RunState) -> Outcome:
    return replace(state, stage=Finished()), (FinishRun(),)


def _without(mapping: Mapping[str, Value], key: str) -> dict[str, Value]:
    return {name: value for name, value in mapping.items() if name != key}
