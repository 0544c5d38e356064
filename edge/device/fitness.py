"""Tracks what a device has declined, why, and when it tries again. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["RETRY_FAILED_S", "Fitness", "Unfit"]

RETRY_FAILED_S = 60.0
"""How long a device waits before it retries a round in which it failed."""


@dataclass(frozen=True)
class Unfit:
    """Why a device does not train: in this round only, or (round 0) until it says otherwise."""

    reason: str
    round: int = 0


class Fitness:
    """Remembers the run and the round that a device declined. A run stays declined; a round is retried later."""

    def __init__(self) -> None:
        self._run: tuple[str, str] | None = None
        self.is_declined_for_data = False
        """Whether the run is declined because the device's data does not suit it."""
        self._round: tuple[str, int, str, float] | None = None

    def decline_run(self, task: RoundTask, reason: str, *, for_data: bool = False) -> None:
        """Sit out the task's run: its other rounds would fail, too."""
        self._run, self.is_declined_for_data = (task.run, reason), for_data

    def accept_data(self) -> None:
        """Forget a run that was declined for the data that the device had."""
        if self.is_declined_for_data:
            self._run, self.is_declined_for_data = None, False

    def decline_round(self, task: RoundTask, reason: str, now_s: float) -> None:
        """Sit out the task's round for a while; another device may take its place."""
        self._round = (task.run, task.round, reason, now_s + RETRY_FAILED_S)

    def unfit(self, task: RoundTask | None, now_s: float) -> Unfit | None:
        """Return why the device declines the task; None if it does not."""
        if task is None:
            # No task may just mean that the broker lost its state, so keep what was declined.
            return None
        if self._run is not None and self._run[0] != task.run:
            self._run, self.is_declined_for_data = None, False
        if self._run is not None:
            return Unfit(self._run[1])
        if self._round is not None:
            run, number, reason, until_s = self._round
            if (run, number) == (task.run, task.round) and task.state == "open" and now_s < until_s:
                return Unfit(reason, number)
            self._round = None
        return None
