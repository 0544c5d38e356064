"""Limits for newcomers: requests per device, work per second, and log lines per minute.

The broker only lets in clients with a token, so we know by name who asks too often. No I/O.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

__all__ = ["Newcomers"]

log = logging.getLogger(__name__)

SHARE = 30
SHARE_S = 10.0
"""A device may send SHARE requests in SHARE_S seconds; one that waits for its reply asks every three seconds."""
WORK_PER_S = 50
"""Requests per second that we compute keys and signatures for. We drop the rest; their devices ask again."""
MINUTE_S = 60.0
TOLD_PER_MINUTE = 5
"""Refusals that get a log line of their own."""


class Newcomers:
    """Counts the requests of newcomers and their refusals."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked: Counter[str] = Counter()
        self._share_since_s = clock()
        self._work = 0
        self._work_since_s = clock()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._told = 0
        self._untold: Counter[str] = Counter()
        self._told_since_s = clock()

    def is_too_much(self, device: str) -> bool:
        """Count a request from the device; returns whether it exceeds the device's share."""
        if self._clock() - self._share_since_s >= SHARE_S:
            self._asked.clear()
            self._share_since_s = self._clock()
        self._asked[device] += 1
        return self._asked[device] > SHARE

    def may_work(self) -> bool:
        """Claim room for one more certificate in this second; returns False if there is none."""
        if self._clock() - self._work_since_s >= 1.0:
            self._work, self._work_since_s = 0, self._clock()
        self._work += 1
        return self._work <= WORK_PER_S

    def refuse(self, device: str, reason: str) -> None:
        """Count a refusal, and log it unless there were too many in this minute."""
        self._refused[device, reason] += 1
        if self._told < TOLD_PER_MINUTE:
            self._told += 1
            log.warning("refused the enrolment of %s: %s", device, reason)
        else:
            self._untold[device] += 1

    def take_refused(self) -> dict[tuple[str, str], int]:
        """Return the refusal counts since the last call, by device and reason; logs one line about a flood."""
        if self._clock() - self._told_since_s >= MINUTE_S:
            if self._untold:
                device, most = self._untold.most_common(1)[0]
                total = self._untold.total()
                log.warning("refused %d more enrolments in the last minute, %d of them of %s", total, most, device)
            # While a flood lasts, log only this line once a minute.
            self._told, self._told_since_s = TOLD_PER_MINUTE if self._untold else 0, self._clock()
            self._untold.clear()
        refused, self._refused = dict(self._refused), Counter()
        return refused
