"""One look at a run's files: what its metrics are made of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.record.live import DeviceActivity, LiveReader, Present
from sparsyedge.coordinator.record.records import RoundRecord, RunRecord
from sparsyedge.coordinator.record.totals import DeviceState, KeptTotals, RunTotals, TotalsReader

__all__ = ["Runs", "Snapshot"]

MAX_RUNS = 16
"""Runs whose sums one process keeps."""
STALE_S = 60.0
"""A coordinator says every ten seconds that it is there."""
STALE_READING_S = 900.0
"""How old a temperature or a charge may be: a device says them only while it works."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that one page of metrics shows."""

    run: RunRecord
    rounds_closed: int
    rounds_s: float
    closed_at: float | None
    """When the last round was closed, in Unix seconds; None before the first."""
    last: RoundRecord | None
    states: tuple[DeviceState, ...]
    settled: RunTotals
    recent: RunTotals
    present: Present | None
    """None if the coordinator is not there to say it."""
    activities: dict[str, DeviceActivity]
    now: float

    @property
    def is_led(self) -> bool:
        """Whether a coordinator leads the run at this moment."""
        return self.run.state in ("running", "paused") and self.now - self.run.seen_at < STALE_S


class Runs:
    """What this process remembers of the runs that it was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, KeptTotals] = {}

    @contextmanager
    def looking(self, run_dir: Path, now: float) -> Iterator[Snapshot]:
        """Read a run's files. The snapshot is good for the block, one thread at a time: it shares the sums."""
        with self._lock:
            with closing(TotalsReader.open(run_dir)) as reader:
                kept = self._kept.setdefault(run_dir.resolve(), KeptTotals())
                while len(self._kept) > MAX_RUNS:
                    del self._kept[next(iter(self._kept))]
                snapshot = _look(reader, kept, run_dir, now)
            yield snapshot


def _look(reader: TotalsReader, kept: KeptTotals, run_dir: Path, now: float) -> Snapshot:
    settled, recent = kept.read(reader)
    number = reader.closed_through()
    rounds_closed, rounds_s = reader.round_seconds()
    present, activities = _live(run_dir, now)
    return Snapshot(
        run=reader.run(),
        rounds_closed=rounds_closed,
        rounds_s=rounds_s,
        closed_at=reader.closed_at(number) if number else None,
        last=reader.closed_round(number) if number else None,
        states=reader.device_states(),
        settled=settled,
        recent=recent,
        present=present,
        activities=activities,
        now=now,
    )


def _live(run_dir: Path, now: float) -> tuple[Present | None, dict[str, DeviceActivity]]:
    """What the coordinator and the devices said lately."""
    reader = LiveReader.open(run_dir)
    if reader is None:
        return None, {}
    with closing(reader):
        present, activities = reader.present(), reader.devices()
    if present is not None and now - present.at >= STALE_S:
        present = None
    return present, {name: each for name, each in activities.items() if now - each.at < STALE_READING_S}
