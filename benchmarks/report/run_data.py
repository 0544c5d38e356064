"""Prepares runs for plotting: one row per round with everything on record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.record.records import PhaseRecord, RoundRecord, RunSummary
from sparsyedge.coordinator.record.store import Store

__all__ = ["ReportedRun", "read_runs"]

LABEL_LENGTH = 24
"""Longer names do not fit in legends or over maps."""
DIGEST = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """One run, with its name in the plots."""

    label: str
    summary: RunSummary
    phases: tuple[PhaseRecord, ...]
    opened_at: dict[int, float]
    """When each round was announced, in Unix seconds."""
    metrics: dict[int, dict[str, float]]
    """The figures of coordinator/record/metrics.py by round and name."""
    masks: dict[int, bytes]
    """The global model's packed masks by round, for the rounds that kept them."""

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        return self.summary.rounds

    @property
    def energy_kinds(self) -> tuple[str, ...]:
        """How the joules were obtained; empty without joules."""
        return tuple(sorted({phase.kind for phase in self.phases if phase.joules is not None}))

    def figure(self, name: str, *, first_round: int = 1) -> tuple[list[int], list[float]]:
        """Rounds and values of one figure; skips rounds without it."""
        known = {number: row[name] for number, row in self.metrics.items() if number >= first_round and name in row}
        return list(known), list(known.values())

    def megabytes(self) -> list[float]:
        """Megabytes moved both ways by the end of each round, over all devices."""
        return list(accumulate((record.bytes_down + record.bytes_up) / 1e6 for record in self.rounds))

    def seconds(self) -> list[float]:
        """Seconds from the start of the run to the end of each round."""
        return list(accumulate(record.seconds for record in self.rounds))

    def joules(self) -> list[float] | None:
        """Joules spent by the end of each round; None if a round has none."""
        spent: dict[int, float] = {}
        for phase in self.phases:
            if phase.joules is not None:
                spent[phase.round] = spent.get(phase.round, 0.0) + phase.joules
        if not self.rounds or any(record.round not in spent for record in self.rounds):
            return None
        return list(accumulate(spent[record.round] for record in self.rounds))


def read_runs(directories: list[Path]) -> list[ReportedRun]:
    """The runs in the order given; runs with equal names are distinguished by their folders."""
    labels = _labels(directories)
    return [_read(directory, label) for directory, label in zip(directories, labels, strict=True)]


def _read(directory: Path, label: str | None) -> ReportedRun:
    store = Store.open(directory)
    try:
        summary = store.summary()
        return ReportedRun(
            label=label or summary.run.name,
            summary=summary,
            phases=store.phase_records(),
            opened_at=store.opened_at(),
            metrics=store.metrics(),
            masks=MaskFiles(directory, rounds=summary.run.rounds).load(),
        )
    finally:
        store.close()


def _labels(directories: list[Path]) -> list[str]:
    """The shortest path endings that differ; for long paths, only the words that differ."""
    parts = [directory.resolve().parts for directory in directories]
    depth = 1
    while depth < max(len(part) for part in parts) and len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    names = ["/".join(part[-depth:]) for part in parts]
    return _differences(names) if len(names) > 1 and max(map(len, names)) > LABEL_LENGTH else names


def _differences(names: list[str]) -> list[str]:
    """The names without shared words and trailing digests; unchanged if that leaves them ambiguous."""
    words = [name.split("-") for name in names]
    common = set.intersection(*map(set, words))
    short = [[word for word in each if word not in common] for each in words]
    telling = [each[:-1] if each and DIGEST.fullmatch(each[-1]) else each for each in short]
    for choice in (telling, short):
        labels = [" ".join(each) for each in choice]
        if all(labels) and len(set(labels)) == len(names):
            return labels
    return names
