"""A run's figures for Prometheus, from run.sqlite and live.sqlite alone.

docs/how-to/monitoring.md lists them. No text from a device becomes a label but its id and its software, each with a
bound on how many and how long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from sparsyedge.coordinator.web import metric_families as families
from sparsyedge.coordinator.web.snapshot import Runs, Snapshot
from sparsyedge.edge.text import one_line

__all__ = ["MAX_DEVICES", "render"]

MAX_DEVICES = 1000
"""Devices that have series of their own; the others count in the fleet's."""
_RUNS = Runs()


def render(run_dir: Path, *, max_devices: int = MAX_DEVICES) -> tuple[bytes, str]:
    """Return a run's metrics in Prometheus's text format, and its content type; raises RunError without a run."""
    registry = CollectorRegistry(auto_describe=False)
    with _RUNS.looking(run_dir, time.time()) as snapshot:
        registry.register(_Page(snapshot, max_devices))
        return _sentence(snapshot) + generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Page:
    """The custom collector of one scrape."""

    def __init__(self, snapshot: Snapshot, max_devices: int) -> None:
        self._snapshot = snapshot
        self._max_devices = max_devices

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry serves one scrape, so no name can clash."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families of the page."""
        yield from families.of_run(self._snapshot)
        yield from families.of_model(self._snapshot)
        yield from families.of_fleet(self._snapshot, self._max_devices)
        yield from families.of_devices(self._snapshot, self._max_devices)
        if self._snapshot.present is not None:
            yield from families.of_present(self._snapshot.present)


def _sentence(snapshot: Snapshot) -> bytes:
    """What the run waits for, as a comment: as a label, every new sentence would be a new series for ever."""
    if snapshot.present is None or not snapshot.present.sentence:
        return b""
    return f"# now: {one_line(snapshot.present.sentence)}\n".encode()
