"""Checks whether a device can train, and tells the coordinator when that changes."""

from __future__ import annotations

import time

from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.fitness import Fitness, Unfit
from sparsyedge.edge.device.limits import Limits
from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["Readiness"]


class Readiness:
    """Combines the reasons not to train: failures, an unreadable task, the device's limits."""

    def __init__(self, courier: Courier, limits: Limits | None) -> None:
        self._courier = courier
        self._limits = limits
        self._fitness = Fitness()

    def has_declined(self, task: RoundTask) -> bool:
        """Tell whether this device has declined the task's run, or its round for now."""
        return self._fitness.unfit(task, time.monotonic()) is not None

    def check(self) -> bool:
        """Tell whether the device can train now; reports changes to the coordinator, with the reason."""
        unfit = self._fitness.unfit(self._courier.task, time.monotonic())
        if unfit is None and (reason := self._courier.unreadable or (self._limits and self._limits.breach())):
            unfit = Unfit(reason)
        self._courier.say_fitness(unfit)
        return unfit is None

    def decline_run(self, task: RoundTask, error: Exception) -> None:
        """Sit out the task's run."""
        self._fitness.decline_run(task, str(error))
        self.check()

    def decline_round(self, task: RoundTask, error: Exception) -> None:
        """Sit out the task's round for a while."""
        self._fitness.decline_round(task, str(error), time.monotonic())
        self.check()
