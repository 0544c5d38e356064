"""Checks whether a device can train, and tells the coordinator when that changes."""

from __future__ import annotations

import time

from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.fitness import Fitness, Unfit
from sparsyedge.edge.device.limits import Limits
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["Readiness"]


class Readiness:
    """Combines the reasons not to train: failures, an unreadable task, too little data, the device's limits."""

    def __init__(self, courier: Courier, data: LocalData, limits: Limits | None) -> None:
        self._courier = courier
        self._data = data
        self._limits = limits
        self._fitness = Fitness()
        self.reason = ""
        """Why the device did not train when it was last checked; empty if nothing kept it."""

    def has_declined(self, task: RoundTask) -> bool:
        """Tell whether this device has declined the task's run, or its round for now."""
        return self._fitness.unfit(task, time.monotonic()) is not None

    def check(self) -> bool:
        """Tell whether the device can train now; reports changes to the coordinator, with the reason."""
        unfit = self._fitness.unfit(self._courier.task, time.monotonic())
        if unfit is None and (reason := self._courier.unreadable or self._data.shortage or self._breach()):
            unfit = Unfit(reason)
        self._courier.say_fitness(unfit)
        self.reason = "" if unfit is None else unfit.reason
        return unfit is None

    def _breach(self) -> str | None:
        return self._limits.breach() if self._limits else None

    @property
    def waits_for_data(self) -> bool:
        """Whether other data could make this device fit."""
        return bool(self._data.shortage) or self._fitness.is_declined_for_data

    def data_changed(self) -> None:
        """Try again what the data before did not suit."""
        self._fitness.accept_data()

    def decline_run(self, task: RoundTask, error: Exception) -> None:
        """Sit out the task's run; if the data does not suit it, only until the data changes."""
        self._fitness.decline_run(task, str(error), for_data=isinstance(error, DataError))
        self.check()

    def decline_round(self, task: RoundTask, error: Exception) -> None:
        """Sit out the task's round for a while."""
        self._fitness.decline_round(task, str(error), time.monotonic())
        self.check()
