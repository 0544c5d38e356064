"""What each device said last about its present job. Only words depend on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from sparsyedge.coordinator.record.live import DeviceActivity
from sparsyedge.coordinator.rounds.stages import Open, RunState
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.messages import Progress, decode
from sparsyedge.edge.text import one_line

__all__ = ["Activities"]

SOONEST_S = 0.5
"""Devices speak every five seconds, or after one at a new phase. We do not even read what comes sooner than this."""


@dataclass(frozen=True)
class _Entry:
    activity: DeviceActivity
    heard_s: float
    since: tuple[float, int]
    """When we first heard of this stretch of training, and the step it was at."""


class Activities:
    """The last word of each member of the open round that is at work; bounded by the cohort."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._entries: dict[str, _Entry] = {}
        self._heard_s: dict[str, float] = {}
        self.changed: set[str] = set()
        """Devices with a new word, or with none any more, since the owner last emptied this."""

    def get(self, device: str) -> DeviceActivity | None:
        """What a device said last; None if it has no job, or says nothing."""
        entry = self._entries.get(device)
        return entry.activity if entry is not None else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def take(self, device: str, payload: bytes, state: RunState) -> str:
        """Take in what a device says; returns what is wrong with it, empty if nothing is.

        What others than members at work say, or about another round, is ignored: the broker may have kept it.
        """
        stage = state.stage
        if not payload:
            self.forget(device)
            return ""
        if not isinstance(stage, Open) or device not in stage.deadlines or device not in state.online:
            return ""
        now_s = self._clock()
        if now_s - self._heard_s.get(device, -SOONEST_S) < SOONEST_S:
            return ""
        self._heard_s[device] = now_s
        try:
            progress = decode(payload, Progress)
        except FrameError as error:
            return one_line(f"unreadable progress: {error}")
        if (progress.run, progress.round) == (state.plan.run, stage.round) and device not in stage.accepted:
            self._note(device, progress, now_s)
        return ""

    def _note(self, device: str, progress: Progress, now_s: float) -> None:
        before, since = self._entries.get(device), (now_s, progress.step)
        if before is not None and _goes_on(before.activity, progress):
            since = before.since
        activity = DeviceActivity(
            device=device,
            round=progress.round,
            phase=progress.phase,
            step=progress.step,
            steps=progress.steps,
            loss=_known(progress.loss),
            temperature_c=_known(progress.temperature_c),
            battery_percent=_known(progress.battery_percent),
            at=self._wall_clock(),
        )
        self._entries[device] = _Entry(activity, now_s, since)
        self.changed.add(device)

    def left_s(self, device: str) -> float | None:
        """How long the device still trains at the pace of its steps so far; None if that is unknown."""
        entry = self._entries.get(device)
        if entry is None or not entry.activity.steps:
            return None
        began_s, first = entry.since
        done, seconds = entry.activity.step - first, entry.heard_s - began_s
        if done <= 0 or seconds <= 0:
            return None
        left = (entry.activity.steps - entry.activity.step) * seconds / done
        return max(0.0, left - (self._clock() - entry.heard_s))

    def forget(self, device: str) -> None:
        """Forget what a device was doing: its job is over, or it left."""
        if self._entries.pop(device, None) is not None:
            self.changed.add(device)

    def keep_only(self, state: RunState) -> None:
        """Forget who is not at work in the open round any more; goes through those that were."""
        stage = state.stage
        if not isinstance(stage, Open):
            self._heard_s.clear()
        for device, entry in list(self._entries.items()):
            is_at_work = isinstance(stage, Open) and device in stage.deadlines and device not in stage.accepted
            if not is_at_work or device not in state.online or entry.activity.round != state.round:
                self.forget(device)


def _goes_on(before: DeviceActivity, now: Progress) -> bool:
    """Whether this is the same stretch of training as before."""
    return (before.round, before.phase, before.steps) == (now.round, now.phase, now.steps) and now.step >= before.step


def _known(value: float | UnsetType) -> float | None:
    return None if value is UNSET else value
