"""Sees to it that the task on the broker is ours: devices refuse any other, but who comes later would find no other."""

from __future__ import annotations

import logging

from sparsyedge.coordinator.fleet.publisher import Publisher

__all__ = ["TaskWatch"]

log = logging.getLogger(__name__)

LOG_AGAIN_S = 60.0


class TaskWatch:
    """Is told what arrives on the task's topic, and puts our own task back where somebody else has written one."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._is_ours = True
        self._foreign = 0
        self._silent_until_s = 0.0

    def note(self, payload: bytes, *, retained: bool) -> None:
        """Look at a task; what the broker kept from before we came is replaced with our first word anyway."""
        if not retained and not self._publisher.has_announced(payload):
            self._is_ours = False
            self._foreign += 1

    def defend(self, now_s: float) -> None:
        """Put our task back, as often as this is called, and say so once a minute at most."""
        if self._is_ours:
            return
        self._is_ours = True
        self._publisher.repeat_task()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + LOG_AGAIN_S
            log.warning(
                "somebody else writes tasks to the broker as coordinator, %d so far: devices refuse them, and ours is "
                "back; find out who else has coordinator.key, and whether the broker is still yours",
                self._foreign,
            )
