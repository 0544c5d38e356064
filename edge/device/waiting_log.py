"""Says what a device waits for, in its log and to systemd: after a few seconds, and then once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.protocol.channel import Health
from sparsyedge.edge.protocol.messages import RoundTask
from sparsyedge.edge.text import duration

__all__ = ["WaitingLog", "between_rounds"]

log = logging.getLogger(__name__)

FIRST_S = 5.0
"""A shorter wait is not worth a line."""
REMIND_S = 60.0


class WaitingLog:
    """The present wait of a device; a wait is over as soon as another one is noted."""

    def __init__(self, supervisor: Supervisor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._sentence = ""
        self._since_s = 0.0
        self._next_s = 0.0

    def note(self, subject: str, sentence: str) -> None:
        """Note what the device waits for; call it often. `subject` is the sentence without its figures."""
        now_s = self._clock()
        if subject != self._sentence:
            self._sentence, self._since_s, self._next_s = subject, now_s, now_s + FIRST_S
        if now_s >= self._next_s:
            self._next_s = now_s + REMIND_S
            text = f"{sentence}, for {duration(now_s - self._since_s)} now"
            log.info("%s", text)
            self._supervisor.status(text)

    def over(self) -> None:
        """Note that the device does not wait any more."""
        if self._sentence and self._next_s > self._since_s + FIRST_S:
            self._supervisor.status("at work")
        self._sentence = ""


def between_rounds(task: RoundTask | None, health: Health, *, is_member: bool) -> tuple[str, str]:
    """What a device without work waits for, as a subject and a sentence; `is_member`: it has answered the task."""
    if health.down_s >= FIRST_S:
        return "broker", f"waiting for the broker at {health.broker}"
    if task is None:
        return "coordinator", "waiting for the coordinator: there is no task"
    if task.state == "finished":
        return "run", f"waiting for the next run: run {task.run} is over"
    after = f"round {task.round + 1}" if task.round < task.rounds else "the end of the run"
    if task.state == "closed":
        return f"next {task.round}", f"waiting for {after}: round {task.round} of {task.rounds} is closed"
    until = time.strftime("%H:%M", time.localtime(task.deadline_unix_s))
    if is_member:
        others = len(task.cohort) - 1
        why = f"this device's update is in, {others} others may take until {until}"
    else:
        why = f"round {task.round} goes on until {until} at most with {len(task.cohort)} other devices"
    return f"open {task.round} {is_member}", f"waiting for {after}: {why}"
