"""Checks whether a device's round is still open and still includes the device."""

from __future__ import annotations

import threading

from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.device.job_notices import JobNotices
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.device.outbox import task_key
from sparsyedge.edge.protocol.messages import RoundTask

__all__ = ["RoundWatch"]


class RoundWatch:
    """Compares a task with the coordinator's latest one."""

    def __init__(
        self,
        courier: Courier,
        data: LocalData,
        *,
        supervisor: Supervisor,
        stopped: threading.Event,
        notices: JobNotices,
    ) -> None:
        """What the device's samples are counts as part of a task; `stopped` ends every round."""
        self._courier = courier
        self._data = data
        self._supervisor = supervisor
        self._stopped = stopped
        self._notices = notices

    def key(self, task: RoundTask) -> str:
        """Return the key of this device's answer to the task."""
        return task_key(task, self._data.digest)

    def is_open(self, task: RoundTask) -> bool:
        """Tell whether this task is still open and this device is still in its cohort."""
        # A device calls this throughout a round, so this is a good place to feed the watchdog and to say what we do.
        self._supervisor.alive()
        self._notices.poll()
        now = self._courier.task
        if self._stopped.is_set() or now is None or now.state != "open":
            return False
        return (now is task or self.key(now) == self.key(task)) and self._courier.device in now.cohort
