"""The rounds of one run as a pure state machine: `(state, event, now_s) -> (state, commands)`. No I/O, no clock.

    Waiting -> Open       enough devices are online
    Open    -> Closing    at least min_updates are in and the round waits for nobody else
    Open    -> Open       the last deadline passed with fewer: extend the round, replace absent members
    Open    -> Open       a member will not train and another device takes its place
    Open    -> Failed     the round was extended too often
    Closing -> Waiting    the model is ready; opens at once if enough devices are online and the run is not paused
    Closing -> Finished   the model is ready, and this was the last round or somebody asked to stop

The owner feeds in events and carries out the commands in order. The rounds guarantee:

- The cohort comes from the devices that are ready (online and fit) when the round opens. A device that comes later
  joins the next round, or replaces a member that will not train.
- Each device gets one update accepted per round. Offering the same hash again gets `Accept` again, even just after the
  round closed; any other hash is refused.
- A round with `cohort_size` updates closes as soon as nobody is uploading. Over-selection asks more devices than that.
- Every member has its own deadline, learned from its past, unless the user set one for all. A round with at least
  min_updates waits until every other member has answered or used up its time (waiting.py).
- A member loses its place to a ready device if it will not train, if its update was refused, or if its deadline passed.
  The same cause in three rounds puts a device in quarantine (conduct.py).
- Deadlines apply before events: a message that arrives after the deadline finds the round closed, even without a tick
  in between. Only an upload that is complete and being checked is waited for, whatever the time.
- No event costs more in a larger fleet, except those that open, extend, close or end a round.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsyedge.coordinator.rounds.cohort import sample_cohort
from sparsyedge.coordinator.rounds.conduct import Conduct
from sparsyedge.coordinator.rounds.deadlines import remember
from sparsyedge.coordinator.rounds.events import (
    Accept,
    AskToWait,
    ChunkReceived,
    CloseRound,
    Command,
    DeviceOffline,
    DeviceOnline,
    DeviceUnfit,
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
    Quarantine,
    RefusalKind,
    Refuse,
    Released,
    ResumeRequested,
    StopRequested,
    Tick,
    UpdateInvalid,
    UpdateVerified,
    UploadComplete,
    VerifyUpdate,
)
from sparsyedge.coordinator.rounds.grants import again_s, ask, heard, is_granted, left, release, verify
from sparsyedge.coordinator.rounds.membership import (
    SILENT,
    WASTED,
    add_spare,
    is_lost,
    open_stage,
    replace_members,
    slowest_s,
    strike,
    suspect,
    with_deadlines,
)
from sparsyedge.coordinator.rounds.offers import describe, reason_to_refuse
from sparsyedge.coordinator.rounds.progress import Progress
from sparsyedge.coordinator.rounds.stages import Closing, Failed, Finished, Open, Plan, RunState, Waiting, replace
from sparsyedge.coordinator.rounds.table import Table
from sparsyedge.coordinator.rounds.waiting import has_enough, is_full, longest_wait, still_waits

__all__ = ["advance", "begin", "restore"]

MAX_EXTENSIONS = 3
IN_TURN = "others are uploading; this device is called when its turn comes"

Outcome = tuple[RunState, tuple[Command, ...]]


def begin(plan: Plan, model: str) -> RunState:
    """The state before round 1, which starts from `model`."""
    return RunState(plan, Waiting(1, model))


def restore(
    plan: Plan,
    model: str,
    progress: Progress,
    now_s: float,
    *,
    times: Mapping[str, tuple[float, ...]] | None = None,
    conduct: Mapping[str, Conduct] | None = None,
    missed: Mapping[str, int] | None = None,
) -> RunState:
    """Rebuild the state of an interrupted run from its store; an open round gets its full time again.

    `times` holds how long each device took for its last updates, `conduct` the devices in quarantine, `missed` the last
    round each device missed. If the run stopped after a round closed, the owner feeds ModelReady, as after every round.
    """
    state = RunState(
        plan,
        Closing(progress.closed_round),
        closed_round=progress.closed_round,
        closed_accepted=Table(progress.closed_accepted),
        conduct=Table(conduct or {}),
        missed=Table(missed or {}),
        times=Table(times or {}),
    )
    opened = progress.open
    if opened is not None:
        stage = open_stage(
            state, opened.cohort, now_s, round_number=opened.round, model=model, accepted=opened.accepted
        )
        return replace(state, stage=stage)
    return state if progress.closed_round else replace(state, stage=Waiting(1, model))


def advance(state: RunState, event: Event, now_s: float) -> Outcome:
    """Apply an event; returns the new state and the commands to carry out. `now_s` must never fall between calls."""
    state, due = _pass_time(state, now_s)
    state, commands = _handle(state, event, now_s)
    return state, due + commands


def _handle(state: RunState, event: Event, now_s: float) -> Outcome:
    match event:
        case DeviceOnline():
            return _take_in(state, event, now_s)
        case DeviceUnfit():
            return _note_unfit(state, event, now_s)
        case DeviceOffline():
            return _take_offline(state, event, now_s), ()
        case OfferReceived():
            return _answer_offer(state, event, now_s)
        case ChunkReceived():
            stage = state.stage
            return (replace(state, stage=heard(stage, event.device, now_s)) if isinstance(stage, Open) else state), ()
        case UploadComplete():
            return _verify(state, event)
        case UpdateVerified():
            return _accept(state, event, now_s)
        case UpdateInvalid():
            return _drop_invalid(state, event, now_s)
        case ModelReady():
            return _next_round(state, event, now_s)
        case StopRequested():
            state = replace(state, stopping=True)
            return _finish(state) if isinstance(state.stage, Waiting) else (state, ())
        case PauseRequested():
            return replace(state, paused=True), ()
        case ResumeRequested():
            return _open_if_enough(replace(state, paused=False), now_s)
        case Released():
            return _release_device(state, event, now_s)
        case Interrupted():
            return (state, ()) if isinstance(state.stage, Finished | Failed) else _finish(state)
        case Tick():
            stage = state.stage
            # A user's deadline is the same for all members, so `_pass_time` handles those missing when it passes.
            overdue = isinstance(stage, Open) and state.plan.deadline_s is None
            return replace_members(state, stage, now_s) if overdue and isinstance(stage, Open) else (state, ())


def _pass_time(state: RunState, now_s: float) -> Outcome:
    """Apply deadlines that have passed."""
    stage = state.stage
    if not isinstance(stage, Open) or stage.verifying:
        return state, ()
    if has_enough(state, stage):
        if still_waits(state, stage, now_s):
            return state, ()
        until_s, awaited = longest_wait(state, stage)
        if now_s >= until_s:
            return _close(state, stage)
        return replace(state, stage=replace(stage, awaited=awaited)), ()
    if now_s < stage.deadline_s:
        return state, ()
    if state.stopping:
        return _finish(state)
    if stage.extensions == MAX_EXTENSIONS:
        return _fail(state, stage)
    return _extend(state, stage, now_s)


def _open_if_enough(state: RunState, now_s: float) -> Outcome:
    """Open the waiting round if enough devices are online."""
    stage, plan = state.stage, state.plan
    if not isinstance(stage, Waiting) or state.paused:
        return state, ()
    needed = plan.devices_to_open(stage.round)
    # Only devices that are online are unfit.
    if len(state.online) - len(state.unfit) < needed:
        return state, ()
    # Better to use a device that failed before than to let the run stand still.
    ready = state.ready
    drawn_from = ready if len(ready) >= needed else state.willing
    cohort = sample_cohort(
        drawn_from,
        plan.asked,
        seed=plan.seed,
        round_number=stage.round,
        shares=plan.shares,
        policy=plan.policy,
        classes=state.classes,
        past=state.past,
    )
    opened = open_stage(state, cohort, now_s, round_number=stage.round, model=stage.model, accepted={})
    return replace(state, stage=opened), (OpenRound(opened.round, cohort, opened.deadline_s),)


def _take_in(state: RunState, event: DeviceOnline, now_s: float) -> Outcome:
    device = event.device
    state = replace(state, online=state.online.set(device, event.boot_id), unfit=state.unfit.without(device))
    if event.classes:
        state = replace(state, classes=state.classes.set(device, event.classes))
    stage = state.stage
    if isinstance(stage, Open):
        return replace_members(state, add_spare(state, stage, device), now_s)
    return _open_if_enough(state, now_s)


def _release_device(state: RunState, event: Released, now_s: float) -> Outcome:
    """Treat a device as new: it may be in quarantine because it became slower."""
    device, stage = event.device, state.stage
    commands: tuple[Command, ...] = (Quarantine(device, 0, ""),) if device in state.conduct else ()
    state = replace(
        state,
        conduct=state.conduct.without(device),
        missed=state.missed.without(device),
        times=state.times.without(device),
    )
    if isinstance(stage, Open):
        stage = replace(add_spare(state, stage, device), slowest_s=slowest_s(state, stage.accepted))
        return replace(state, stage=stage), commands
    state, due = _open_if_enough(state, now_s)
    return state, commands + due


def _note_unfit(state: RunState, event: DeviceUnfit, now_s: float) -> Outcome:
    """Go on without the device: a ready device replaces it, or the round continues with the remaining members."""
    stage = state.stage
    if event.round and event.round < state.round:
        # A failure in an earlier round says nothing about this one.
        return _take_in(state, DeviceOnline(event.device, event.boot_id), now_s)
    state = replace(
        state,
        online=state.online.set(event.device, event.boot_id),
        unfit=state.unfit.set(event.device, event.round),
    )
    if not isinstance(stage, Open):
        return state, ()
    struck_out: tuple[Command, ...] = ()
    if event.round == stage.round and event.device in stage.deadlines:
        state, struck_out = strike(state, event.device, "failed", "it failed in several rounds; see its log")
    state, commands = _go_on_without(state, suspect(stage, event.device), now_s)
    return state, struck_out + commands


def _go_on_without(state: RunState, stage: Open, now_s: float) -> Outcome:
    """Replace members that will not answer, and close the round if it waits for nobody else."""
    state, commands = replace_members(state, stage, now_s)
    state, due = _pass_time(state, now_s)
    return state, commands + due


def _take_offline(state: RunState, event: DeviceOffline, now_s: float) -> RunState:
    """Remove a device that left. Its upload keeps its place: a connection is often back within seconds."""
    if state.online.get(event.device) != event.boot_id:
        return state
    stage = state.stage
    return replace(
        state,
        stage=left(stage, event.device, now_s) if isinstance(stage, Open) else stage,
        online=state.online.without(event.device),
        unfit=state.unfit.without(event.device),
        left_s=state.left_s.set(event.device, now_s),
    )


def _answer_offer(state: RunState, event: OfferReceived, now_s: float) -> Outcome:
    stage, device, offer, update = state.stage, event.device, event.offer, event.offer.update.sha256
    if offer.run == state.plan.run and _accepted_hash(state, device, offer.round) == update:
        return state, (Accept(device, offer.round, update, again=True),)
    refusal = reason_to_refuse(state.plan, stage, event)
    if refusal is not None or not isinstance(stage, Open):
        kind, reason = refusal or (RefusalKind.LATE, describe(stage))
        return state, (Refuse(device, offer.round, update, reason, run=offer.run, kind=kind),)
    asked = ask(state.plan, stage, event, now_s)
    state = replace(state, stage=asked.stage)
    commands: list[Command] = []
    for idle in asked.lost:
        state, struck_out = strike(state, idle, "wasted", WASTED)
        commands += struck_out
    if asked.granted:
        commands.append(GrantUpload(device, offer))
    elif asked.reason:
        commands.append(AskToWait(device, offer, asked.reason))
    elif device not in asked.stage.granted:
        commands.append(AskToWait(device, offer, IN_TURN, again_s(asked.stage)))
    return state, tuple(commands)


def _accepted_hash(state: RunState, device: str, round_number: int) -> str | None:
    """The device's accepted hash in that round, if it is the open round or the last closed one."""
    if isinstance(state.stage, Open) and state.stage.round == round_number:
        return state.stage.accepted.get(device)
    return state.closed_accepted.get(device) if state.closed_round == round_number else None


def _verify(state: RunState, event: UploadComplete) -> Outcome:
    """Have the upload checked, once."""
    stage, device = state.stage, event.device
    if not isinstance(stage, Open) or not is_granted(stage, device, event.update) or stage.granted[device].verifying:
        return state, ()
    return replace(state, stage=verify(stage, device)), (VerifyUpdate(device, event.update),)


def _accept(state: RunState, event: UpdateVerified, now_s: float) -> Outcome:
    stage, device = state.stage, event.device
    if not isinstance(stage, Open) or not is_granted(stage, device, event.update):
        return state, ()
    seconds = now_s - stage.opened_s
    stage = replace(
        release(stage, device),
        accepted=stage.accepted.set(device, event.update),
        slowest_s=max(stage.slowest_s, seconds),
    )
    accept = Accept(device, stage.round, event.update)
    state = replace(
        state,
        stage=stage,
        times=remember(state.times, device, seconds),
        conduct=state.conduct.without(device),
    )
    state, commands = _pass_time(state, now_s)
    return state, (accept, *commands)


def _drop_invalid(state: RunState, event: UpdateInvalid, now_s: float) -> Outcome:
    stage, device = state.stage, event.device
    if not isinstance(stage, Open) or not is_granted(stage, device, event.update):
        return state, ()
    kind = RefusalKind.INVALID
    refuse = Refuse(device, stage.round, event.update, event.reason, run=state.plan.run, kind=kind)
    stage = replace(
        suspect(release(stage, device), device), failed=stage.failed.set(device, stage.failed.get(device, 0) + 1)
    )
    state, struck_out = strike(replace(state, stage=stage), device, "invalid", "its updates were refused")
    state, commands = _go_on_without(state, stage, now_s)
    return state, (refuse, *struck_out, *commands)


def _close(state: RunState, stage: Open) -> Outcome:
    commands: tuple[Command, ...] = ()
    if not is_full(state, stage):
        absent = {*stage.deadlines, *stage.replaced} - {*stage.accepted, *state.unfit}
        missed = state.missed
        for device in absent:
            missed = missed.set(device, stage.round)
        state = replace(state, missed=missed)
        for device in stage.cohort:
            if device in absent and device not in stage.failed:
                state, struck_out = strike(state, device, "silent", SILENT)
                commands += struck_out
    closed = replace(state, stage=Closing(stage.round), closed_round=stage.round, closed_accepted=stage.accepted)
    return closed, (*commands, CloseRound(stage.round, tuple(sorted(stage.accepted))))


def _extend(state: RunState, stage: Open, now_s: float) -> Outcome:
    """Give the round another deadline and replace absent members with ready devices."""
    before = stage.cohort
    lost = [device for device in before if is_lost(state, stage, device, now_s)]
    # Replace absent members first: a slow one may still make it.
    absent = sorted(lost, key=lambda device: state.is_willing(device) and device not in stage.failed)
    spare = state.ready - set(before) - set(stage.replaced)
    plan = state.plan
    policy = plan.policy_of_spares
    substitutes = sample_cohort(spare, len(absent), seed=plan.seed, round_number=stage.round, policy=policy)
    replaced = stage.replaced
    # An absent member without a substitute stays: it may still come back.
    for device, substitute in zip(absent, substitutes, strict=False):
        stage = release(stage, device)
        replaced = replaced.set(device, substitute)
    cohort = tuple(sorted({*before, *substitutes} - set(absent[: len(substitutes)])))
    suspects = Table((device, None) for device in stage.suspects if device not in replaced)
    extended = with_deadlines(
        state, replace(stage, extensions=stage.extensions + 1, replaced=replaced, suspects=suspects), cohort, now_s
    )
    command = ExtendRound(extended.round, cohort, extended.deadline_s, extended.extensions)
    return replace(state, stage=extended), (command,)


def _fail(state: RunState, stage: Open) -> Outcome:
    present = sum(device in state.online for device in stage.deadlines)
    unfit = sum(device in state.unfit for device in stage.deadlines)
    fixed_s = state.plan.deadline_s
    deadlines = "deadlines of its devices" if fixed_s is None else f"deadlines of {fixed_s:g} s"
    reason = (
        f"round {stage.round} of run {state.plan.run} has {len(stage.accepted)} of {state.plan.min_updates} updates "
        f"that it needs, after {stage.extensions + 1} {deadlines}, and {present} of the "
        f"{len(stage.deadlines)} devices in its cohort are online{f', {unfit} of them unfit' if unfit else ''}; "
        f"`sparsyedge coordinator devices` says why, or start a new run with a lower `min_updates` or a longer "
        f"`deadline_s`"
    )
    return replace(state, stage=Failed(reason)), (FailRun(reason),)


def _next_round(state: RunState, event: ModelReady, now_s: float) -> Outcome:
    stage = state.stage
    if not isinstance(stage, Closing):
        return state, ()
    if stage.round == state.plan.rounds or state.stopping:
        return _finish(state)
    # Devices unfit for the closed round may try the next one.
    unfit = Table((device, number) for device, number in state.unfit.items() if number == 0 or number > stage.round)
    return _open_if_enough(
        replace(state, stage=Waiting(stage.round + 1, event.model), unfit=unfit, past=event.past), now_s
    )


def _finish(state: RunState) -> Outcome:
    return replace(state, stage=Finished()), (FinishRun(),)
