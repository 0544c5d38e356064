"""Tells the observer which devices the run is waiting for: at every change, otherwise once a minute."""

from __future__ import annotations

from collections.abc import Callable

from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.rounds.stages import Open, RunState, Waiting
from sparsyedge.coordinator.rounds.waiting import waits_until

__all__ = ["WaitingNotes"]

REMIND_S = 60.0


class WaitingNotes:
    """Remembers why each unfit device does not train, and when it last reminded the observer."""

    def __init__(self, observer: Observer, *, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock
        self._unfit: dict[str, str] = {}
        self._reminded_s = clock()
        self._has_changed = False

    def reason(self, device: str) -> str:
        """Why a device does not train; empty if it is fit."""
        return self._unfit.get(device, "")

    def note_fitness(self, device: str, reason: str) -> None:
        """Remember why a device does not train, empty if it is fit; tells the observer about a new reason."""
        if self._unfit.pop(device, "") != reason and reason:
            self._observer.device_unfit(device=device, reason=reason)
        if reason:
            self._unfit[device] = reason

    def mark(self) -> None:
        """Note that the number of devices may have changed."""
        self._has_changed = True

    def settle(self, state: RunState) -> None:
        """Say it once, however many came and went."""
        if self._has_changed:
            self._has_changed = False
            self.tell(state)

    def tell(self, state: RunState) -> None:
        """Say how many devices the waiting round still needs to open."""
        stage = state.stage
        if isinstance(stage, Waiting):
            needed = state.plan.devices_to_open(stage.round)
            self._observer.waiting(
                round_number=stage.round, online=state.ready_count, needed=needed, unfit=dict(self._unfit)
            )

    def restart(self) -> None:
        """Restart the minute: the observer just got an update."""
        self._reminded_s = self._clock()

    def remind(self, state: RunState, now_s: float) -> None:
        """Repeat it once a minute; for an open round, say what each missing member is doing."""
        if now_s - self._reminded_s < REMIND_S:
            return
        self._reminded_s = now_s
        self.tell(state)
        stage = state.stage
        if isinstance(stage, Open):
            awaited = {device: _doing(state, device) for device in stage.cohort if device not in stage.accepted}
            until_s = min(stage.deadline_s, waits_until(state, stage))
            self._observer.awaiting(round_number=stage.round, awaited=awaited, left_s=until_s - now_s)


def _doing(state: RunState, device: str) -> str:
    if device in state.unfit:
        return "unfit"
    return "training" if device in state.online else "offline"
