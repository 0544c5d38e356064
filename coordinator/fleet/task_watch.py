"""Keeps our task on the broker. Devices refuse a foreign one, but a device that connects later would find no other."""

from __future__ import annotations

import logging

from sparsyedge.coordinator.fleet.publisher import Publisher

__all__ = ["TaskWatch"]

log = logging.getLogger(__name__)

LOG_AGAIN_S = 60.0


class TaskWatch:
    """Watches the task topic and restores our task if somebody else overwrites it."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._is_ours = True
        self._foreign = 0
        self._silent_until_s = 0.0

    def note(self, payload: bytes, *, retained: bool) -> None:
        """Check a task. A retained one predates us, and our first task replaces it anyway."""
        if not retained and not self._publisher.has_announced(payload):
            self._is_ours = False
            self._foreign += 1

    def defend(self, now_s: float) -> None:
        """Restore our task if it was overwritten; logs once a minute at most."""
        if self._is_ours:
            return
        self._is_ours = True
        self._publisher.repeat_task()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + LOG_AGAIN_S
            log.warning(
                "somebody else publishes tasks as coordinator, %d so far: devices refuse them, and we restored ours; "
                "find out who else has coordinator.key, and whether the broker is still yours",
                self._foreign,
            )
