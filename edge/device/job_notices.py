"""Says what the device is doing while it works on a round: rarely, in passing, and never so that training waits.

A step only leaves its figures here. Every few seconds `poll` makes a message of the last ones and hands it to the link,
which sends it without waiting or not at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType

from sparsyedge.edge.device.limits import Vitals
from sparsyedge.edge.phase_costs import Phase
from sparsyedge.edge.protocol.messages import Progress, RoundTask, encode

__all__ = ["JobNotices"]

EVERY_S = 5.0
PHASE_S = 1.0
"""A new phase need not wait as long; phases of less than this are not worth a message."""
USUAL_COHORT = 500
"""In a larger cohort each device says less, so that all of them send 100 messages a second at most."""
RECENT_STEPS = 20
"""The running loss is the mean over this many steps."""


class JobNotices:
    """The present job of a device, and when it was last told to the fleet."""

    def __init__(
        self,
        tell: Callable[[bytes], bool] | None = None,
        *,
        vitals: Callable[[], Vitals] = Vitals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` sends a message if it can do so at once, and returns whether it did; without it, nothing is said.

        `vitals` returns what was measured last; it must not measure.
        """
        self._tell = tell
        self._vitals = vitals
        self._clock = clock
        self._task: RoundTask | None = None
        self._phase: Phase | None = None
        self._step = self._steps = 0
        self._losses: Sequence[float] = ()
        self._told_s = -math.inf
        """When we last tried to say something."""
        self._patience = 1.0
        self._phase_told = False
        self._is_cleared = False
        """Whether the fleet knows that no job is under way; a process that died may have left its last message."""

    def begin(self, task: RoundTask) -> None:
        """Note that work on a task begins."""
        self._task, self._phase, self._patience = task, None, max(1.0, len(task.cohort) / USUAL_COHORT)
        self._step, self._steps, self._losses = 0, 0, ()

    def note_phase(self, phase: Phase) -> None:
        """Note that a phase begins."""
        self._phase, self._phase_told = phase, False
        self.poll()

    def note_step(self, step: int, steps: int, losses: Sequence[float]) -> None:
        """Note that a training step is done; `losses` are those of the epoch so far."""
        self._step, self._steps, self._losses = step, steps, losses

    def end(self) -> None:
        """Note that the job is over."""
        self._task, self._phase, self._phase_told = None, None, False
        self.poll()

    def leave(self) -> None:
        """Take back what was said last: this device leaves its fleet."""
        if self._tell is not None and not self._is_cleared:
            self._is_cleared = self._tell(b"")

    def poll(self) -> None:
        """Say what is new if it is time to; call it often."""
        if self._tell is None or (self._task is None and self._is_cleared):
            return
        now_s = self._clock()
        if now_s - self._told_s < self._patience * (EVERY_S if self._phase_told else PHASE_S):
            return
        # If it cannot be sent, the next one may as well be a later one.
        self._told_s = now_s
        if self._task is None:
            self._is_cleared = self._tell(b"")
        elif self._phase is not None:
            self._phase_told = self._tell(self._message(self._task, self._phase))
            self._is_cleared = False

    def _message(self, task: RoundTask, phase: Phase) -> bytes:
        recent, vitals, trains = self._losses[-RECENT_STEPS:], self._vitals(), phase == "train"
        return encode(
            Progress(
                run=task.run,
                round=task.round,
                phase=phase,
                step=self._step if trains else 0,
                steps=self._steps if trains else 0,
                loss=_shown(sum(recent) / len(recent)) if recent else UNSET,
                temperature_c=_shown(vitals.temperature_c),
                battery_percent=_shown(vitals.battery_percent),
            )
        )


def _shown(value: float | None) -> float | UnsetType:
    """The figure, with as many digits as anybody reads; UNSET if there is none."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) and abs(value) <= 1e9 else UNSET
