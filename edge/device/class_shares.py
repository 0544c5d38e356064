"""Which classes a device has, for runs that make up cohorts of devices with different ones."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from msgspec import UNSET

from sparsyedge.edge.compatibility import CLASS_SHARES
from sparsyedge.edge.data.dataset import Labels
from sparsyedge.edge.device.courier import Abandoned, Courier
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.device.task_inputs import TaskInputs, Wanted
from sparsyedge.edge.errors import ConfigError, SparsyedgeError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["ClassTeller", "class_shares"]

log = logging.getLogger(__name__)


def class_shares(labels: Labels, classes: int) -> tuple[int, ...]:
    """The share of each class among the labels, in hundredths, rounded up: a class that is there is never at 0."""
    counts = np.bincount(labels, minlength=classes)
    return tuple((-(-100 * counts // max(1, len(labels)))).tolist())


class ClassTeller:
    """Tells the coordinator which classes this device has, while the run asks for it, and not otherwise."""

    def __init__(self, courier: Courier, data: LocalData, inputs: TaskInputs) -> None:
        self._courier = courier
        self._data = data
        self._inputs = inputs
        self._told: tuple[str, str] | None = None
        """The manifest and the data that the coordinator knows the shares of."""
        self._tried: tuple[str, int] | None = None
        """The last round without this device in which it tried to tell."""

    def tell(self, task: RoundTask, manifest: Manifest) -> None:
        """Answer a run whose manifest is here; raises ConfigError if the owner of the data forbids the answer."""
        if not _asks(task):
            return
        if not self._data.tells_classes:
            raise ConfigError(
                f'run {task.run} asks which classes this device has (`selection = "balanced"`), and '
                "`data.tell_classes` is false in its device.toml; allow it there, or run with another `selection`"
            )
        self._told = task.manifest.sha256, self._data.digest
        labels = self._data.for_round(task, manifest.form, device_id=self._courier.device).train.y
        self._courier.say_classes(class_shares(labels, manifest.classes))

    def follow(self, task: RoundTask, *, keep_going: Callable[[], bool]) -> None:
        """Answer a round in which this device has no part, so that it can be chosen for a later one; tries once.

        Fetches the manifest if it is not here. Takes the answer back if the run does not ask.
        """
        if not _asks(task):
            self._told = None
            self._courier.say_classes(UNSET)
            return
        is_known = self._told == (task.manifest.sha256, self._data.digest)
        if task.state != "open" or is_known or self._tried == (task.run, task.round) or not len(self._data):
            return
        self._tried = task.run, task.round
        try:
            manifest = self._inputs.artifacts(task, roles=(), wanted=self._wanted(task, keep_going)).manifest
            self.tell(task, manifest)
        except (Abandoned, SparsyedgeError, OSError) as error:
            # If that is not the link's fault, the device declines the run once it is chosen.
            log.info("round %d is not told which classes this device has: %s", task.round, error)

    def _wanted(self, task: RoundTask, keep_going: Callable[[], bool]) -> Wanted:
        def is_wanted() -> bool:
            now = self._courier.task
            return keep_going() and now is not None and (now.run, now.round) == (task.run, task.round)

        return is_wanted


def _asks(task: RoundTask) -> bool:
    return CLASS_SHARES in (task.needs or ())
