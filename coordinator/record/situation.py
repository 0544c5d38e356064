"""What a run waits for, in one sentence with figures. Pure: the state of the rounds and what devices said go in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Literal

from sparsyedge.coordinator.record.live import DeviceActivity
from sparsyedge.coordinator.rounds.conduct import is_out
from sparsyedge.coordinator.rounds.stages import Closing, Failed, Finished, Open, RunState, Waiting
from sparsyedge.coordinator.rounds.waiting import has_enough, waits_for, waits_until, wanted
from sparsyedge.edge.text import duration, one_line

__all__ = ["Heard", "Situation", "describe_activity", "situation_of"]

SHOWN = 5
"""The most devices to name in one sentence."""
REASON_CHARACTERS = 120
DAY_S = 86_400.0
DOING = {
    "download": "downloading",
    "evaluate": "evaluating",
    "train": "training",
    "prune": "pruning",
    "encode": "encoding",
    "upload": "uploading",
}


@dataclass(frozen=True)
class Situation:
    """What a run is doing, and whom or what it waits for."""

    round: int
    stage: Literal["waiting", "open", "closing", "paused", "over"]
    sentence: str
    until: float | None = None
    """When it stops waiting, in Unix seconds; None if it waits without a limit."""
    have: int = 0
    need: int = 0
    """Devices that are ready and how many it takes to open the round, or updates accepted and asked for."""
    subject: tuple[object, ...] = ()
    """What the sentence is about. If only figures change, it stays as it is."""


@dataclass(frozen=True)
class Heard:
    """What the coordinator was told, beyond the state of the rounds."""

    activity: Callable[[str], DeviceActivity | None]
    """What a device said last about its present job."""
    left_s: Callable[[str], float | None]
    """How long a device still trains, as its steps so far suggest."""
    unfit: Mapping[str, str]
    """Why devices do not train."""


def situation_of(state: RunState, heard: Heard, *, now_s: float, unix_s: float) -> Situation:
    """Describe a run at `now_s` of its own clock, which is `unix_s` on the wall."""
    stage = state.stage
    match stage:
        case Waiting():
            return _before_round(state, stage, heard)
        case Open():
            return _in_round(_Round(state, stage, heard, now_s, unix_s))
        case Closing():
            updates = len(state.closed_accepted)
            sentence = f"round {stage.round} is being closed: {_count(updates, 'update')} become the next model"
            return Situation(stage.round, "closing", sentence, have=updates, need=updates)
        case Finished():
            return Situation(state.round, "over", f"the run is over after {_count(state.round, 'round')}")
        case Failed():
            return Situation(state.round, "over", f"the run has failed: {stage.reason}")


# ---- before a round opens --------------------------------------------------------------------------------------------


def _before_round(state: RunState, stage: Waiting, heard: Heard) -> Situation:
    number, ready, needed = stage.round, state.ready_count, state.plan.devices_to_open(stage.round)
    if state.paused:
        sentence = (
            f"round {number} waits for `sparsyedge coordinator resume`: the run is paused, {ready} devices are ready"
        )
        return Situation(number, "paused", sentence, have=ready, need=needed, subject=("paused", number))
    missing = max(0, needed - ready)
    reasons = _reasons(state, heard)
    sentence = (
        f"round {number} waits for {missing} more device{'s' * (missing != 1)}: {ready} of {needed} are ready"
        f"{f'; {reasons}' if reasons else ''}"
    )
    subject = ("waiting", number, ready, needed, tuple(sorted(state.unfit)))
    return Situation(number, "waiting", sentence, have=ready, need=needed, subject=subject)


def _reasons(state: RunState, heard: Heard) -> str:
    """Say why devices that are online do not count."""
    out = [device for device in state.conduct if is_out(state.conduct, device, round_number=state.round)]
    told = {device: _unfit(device, heard) for device in sorted(state.unfit)[:SHOWN]}
    told |= {
        device: "left out for failing" for device in sorted(out) if device not in state.unfit and device in state.online
    }
    more = len(state.unfit) - min(len(state.unfit), SHOWN)
    return _some([f"{device} ({reason})" for device, reason in told.items()], more)


def _unfit(device: str, heard: Heard) -> str:
    reason = heard.unfit.get(device, "")
    return f"unfit: {one_line(reason, REASON_CHARACTERS)}" if reason else "unfit"


# ---- while a round is open -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Round:
    """An open round at one moment."""

    state: RunState
    stage: Open
    heard: Heard
    now_s: float
    unix_s: float

    def is_absent(self, device: str) -> bool:
        """Whether nobody expects an update of this member soon: it is gone, unfit, or had its update refused."""
        if device in self.stage.granted:
            return False
        return device not in self.state.online or device in self.state.unfit or device in self.stage.failed

    def at(self, moment_s: float) -> float:
        """A moment of the run's clock in Unix seconds."""
        return self.unix_s + moment_s - self.now_s

    def clock(self, moment_s: float) -> str:
        """A moment of the run's clock as the coordinator's local time."""
        form = "%H:%M" if abs(moment_s - self.now_s) < DAY_S else "%d %b %H:%M"
        return time.strftime(form, time.localtime(self.at(moment_s)))


def _in_round(now: _Round) -> Situation:
    state, stage = now.state, now.stage
    missing = [device for device in stage.deadlines if device not in stage.accepted]
    absent = [device for device in missing if now.is_absent(device)]
    if len(missing) > SHOWN:
        # There is no room for all: name those that somebody may have to look after.
        gone = set(absent)
        shown = nsmallest(SHOWN, absent)
        shown += nsmallest(SHOWN - len(shown), (device for device in missing if device not in gone))
    else:
        shown = sorted(missing)
    names = _some([f"{device} ({_doing(now, device)})" for device in shown], len(missing) - len(shown))
    enough = has_enough(state, stage)
    until_s = min(stage.deadline_s, waits_until(state, stage)) if enough else stage.deadline_s
    sentence = f"round {stage.round} waits for {len(missing)} of {len(stage.deadlines)} devices: {names}; "
    if enough:
        sentence += f"it closes at {now.clock(until_s)} at the latest"
    else:
        few = min(state.plan.min_updates, wanted(state, stage)) - len(stage.accepted)
        extended = f", after {_count(stage.extensions, 'extension')}" if stage.extensions else ""
        sentence += f"it needs {few} more by {now.clock(until_s)}{extended}"
    if state.stopping or state.paused:
        sentence += "; then the run stops" if state.stopping else "; then the run pauses"
    return Situation(
        stage.round,
        "open",
        sentence,
        until=now.at(until_s),
        have=len(stage.accepted),
        need=len(stage.deadlines),
        subject=("open", stage.round, tuple(nsmallest(SHOWN, absent)), len(absent)),
    )


def _doing(now: _Round, device: str) -> str:
    """Say what a member is doing, and until when the round waits for it if that may be in vain."""
    stage = now.stage
    held = stage.granted.get(device)
    if held is not None:
        return "its update is being checked" if held.verifying else f"uploading {held.bytes / 1e6:.2f} MB"
    if now.is_absent(device):
        return f"{_absence(now, device)}; {_patience(now, device)}"
    if now.now_s <= stage.asked.get(device, -math.inf):
        queue = [name for name, until_s in stage.asked.items() if now.now_s <= until_s]
        return f"waits for a place to upload, number {queue.index(device) + 1} of {len(queue)}"
    activity = now.heard.activity(device)
    if activity is None or activity.round != stage.round:
        return f"asked {duration(max(0.0, now.now_s - stage.opened_s))} ago"
    return describe_activity(activity, now.heard.left_s(device))


def _absence(now: _Round, device: str) -> str:
    if device in now.state.unfit:
        return _unfit(device, now.heard)
    if device in now.state.online:
        return "its update was refused"
    left_s = now.state.left_s.get(device)
    return "not seen yet" if left_s is None else f"offline for {duration(max(0.0, now.now_s - left_s))}"


def _patience(now: _Round, device: str) -> str:
    until_s = waits_for(now.state, now.stage, device)
    return "no longer waited for" if until_s <= now.now_s else f"not waited for after {now.clock(until_s)}"


def describe_activity(activity: DeviceActivity, left_s: float | None = None) -> str:
    """Say what a device is doing and how far it is: `training, step 120 of 310, about 4 min`."""
    text = DOING.get(activity.phase, activity.phase)
    if activity.steps:
        text += f", step {activity.step} of {activity.steps}"
    return text if left_s is None else f"{text}, about {duration(max(1.0, left_s))}"


def _some(names: list[str], more: int) -> str:
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
