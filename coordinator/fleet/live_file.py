"""Keeps live.sqlite up to date while a run goes on. It may fail at any time, and then the run goes on without it."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from sparsyedge.coordinator.fleet.activities import Activities
from sparsyedge.coordinator.record.live import LIVE_NAME, LiveRecord, Present
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["LiveFile", "own_costs"]

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""How long to leave the file alone after a failure: a lock that somebody holds costs us a second each time."""


class LiveFile:
    """The live record of a run, for the one thread that leads it."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._record: LiveRecord | None = None
        self._present = Present(
            round=0,
            stage="waiting",
            sentence="the coordinator is starting",
            until=None,
            online=0,
            accepted=0,
            cohort=0,
            uploads=0,
            offers_waiting=0,
            inbox_messages=0,
            cpu_s=0.0,
            rss_bytes=0,
            at=0.0,
        )
        self._retry_s = -1.0
        self._trouble = ""
        self._is_behind = True
        """Whether the file lacks words that are not in `changed` any more."""

    def show(self, present: Present, activities: Activities | None = None) -> None:
        """Write what the coordinator and the devices are doing; a failure is logged once."""
        self._present = present
        if self._clock() < self._retry_s:
            return
        try:
            self._write(present, activities)
        except (sqlite3.Error, OSError, SparsyedgeError) as error:
            self._note_failure(error)
            return
        if self._trouble:
            log.info("%s is written again", self._run_dir / LIVE_NAME)
        self._trouble = ""

    def say(self, sentence: str) -> None:
        """Write another sentence beside what was shown last."""
        self.show(replace(self._present, sentence=sentence, at=time.time()))

    def end(self, sentence: str) -> None:
        """Write how the run ended."""
        self.show(replace(self._present, stage="over", sentence=sentence, until=None, at=time.time()))

    def _write(self, present: Present, activities: Activities | None) -> None:
        if self._record is None:
            self._record = LiveRecord(self._run_dir)
            self._is_behind = True
        if activities is not None:
            self._note(self._record, activities)
        self._record.flush(present)

    def _note(self, record: LiveRecord, activities: Activities) -> None:
        for device in activities if self._is_behind else activities.changed:
            activity = activities.get(device)
            if activity is None:
                record.forget(device)
            else:
                record.note(activity)
        self._is_behind = False
        activities.changed.clear()

    def _note_failure(self, error: Exception) -> None:
        self._retry_s = self._clock() + RETRY_S
        if not self._trouble:
            log.warning(
                "cannot write %s: %s; the run goes on, but pages and `status` do not show what it is doing",
                self._run_dir / LIVE_NAME,
                error,
            )
        self._trouble = str(error)
        self.close()

    def close(self) -> None:
        """Close the file; it stays, with what was shown last."""
        record, self._record = self._record, None
        if record is not None:
            record.close()


def own_costs(workers: Collection[int]) -> tuple[float, int]:
    """Processor seconds of this process and its workers, dead ones included, and this process's resident bytes."""
    spent = os.times()
    seconds = spent.user + spent.system + spent.children_user + spent.children_system
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in workers:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds += (int(fields[11]) + int(fields[12])) / ticks
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        pages = 0
    return seconds, pages * os.sysconf("SC_PAGE_SIZE")
