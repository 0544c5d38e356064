"""What the page shows of a run, kept up to date: `look` reads what changed on disk and returns only that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsyedge.coordinator.record.evaluation_tables import describe_evaluation
from sparsyedge.coordinator.record.live import LIVE_NAME, DeviceActivity, LiveReader, Present
from sparsyedge.coordinator.record.page_store import PageStore
from sparsyedge.coordinator.record.run_log import LOG_NAME
from sparsyedge.coordinator.record.store import STORE_NAME
from sparsyedge.coordinator.web.device_rows import DeviceRows
from sparsyedge.coordinator.web.log_tail import LogTail
from sparsyedge.coordinator.web.scores import on_devices
from sparsyedge.coordinator.web.sentences import describe
from sparsyedge.edge.errors import RunError, SparsyedgeError

__all__ = ["Document", "RunPicture"]

Document = dict[str, Any]

UNSETTLED = 2
"""Rounds that may still change after they closed: a late evaluation, a last report."""
LATE_EVERY_S = 5.0
SHOWN_EVALUATIONS = 5
"""Evaluation rounds in which nobody trains; they are rare."""


class RunPicture:
    """A run's files as one document; only one thread at a time may look."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._store: PageStore | None = None
        self._live: LiveReader | None = None
        self._live_inode = 0
        self._versions = (-1, -1)
        self._log = LogTail(run_dir / LOG_NAME)
        self._activities: dict[str, DeviceActivity] = {}
        self._present: Present | None = None
        self._rows = DeviceRows()
        self._facts: Document = {}
        self._run: Document = {}
        self._rounds: dict[int, Document] = {}
        self._rounds_read = (-1, 0.0)
        self._layers: Document = {}

    def whole(self) -> Document:
        """Return everything as of the last look."""
        return {
            "now": self._clock(),
            "run": self._run,
            "rounds": list(self._rounds.values()),
            "devices": list(self._rows.shown.values()),
            "layers": self._layers,
            "log": list(self._log.lines),
        }

    def look(self) -> Document:
        """Read what changed; returns the parts that did, and an empty document if none did."""
        change: Document = {}
        trouble = ""
        try:
            self._read(change)
        except SparsyedgeError as error:
            trouble = str(error)
        run = describe(self._facts, self._present, now=self._clock(), trouble=trouble or self._rows.doubt)
        if run != self._run:
            self._run = change["run"] = run
        if lines := self._log.grown():
            change["log"] = lines
        if change:
            change["now"] = self._clock()
        return change

    def close(self) -> None:
        """Close the files."""
        for reader in (self._store, self._live):
            if reader is not None:
                reader.close()
        self._store = self._live = None

    def _read(self, change: Document) -> None:
        store, live = self._open()
        versions = (store.version(), live.version() if live else -1)
        store_changed, live_changed = (now != then for now, then in zip(versions, self._versions, strict=True))
        if live is None:
            self._present, self._activities = None, {}
        elif live_changed:
            self._present, self._activities = live.present(), live.devices()
        if store_changed:
            self._facts = _facts(store, self._run_dir)
            closed, now = self._facts["closed"], self._clock()
            if self._rounds_read[0] != closed or now - self._rounds_read[1] > LATE_EVERY_S:
                self._read_rounds(store, change)
                self._rounds_read = closed, now
        if store_changed or live_changed or self._rows.is_stale(self._clock()):
            rows = self._rows.look(store if store_changed else None, self._facts, self._activities, now=self._clock())
            if rows:
                change["devices"] = rows
        # Only now: what could not be read is read again at the next look.
        self._versions = versions

    def _open(self) -> tuple[PageStore, LiveReader | None]:
        if self._store is None:
            if not (self._run_dir / STORE_NAME).is_file():
                raise RunError("the run is being set up: its coordinator has written nothing yet")
            self._store, self._versions = PageStore.open(self._run_dir), (-1, -1)
            self._rows.folder_of(self._store)
        # A coordinator that starts begins a new file, and this one is gone.
        try:
            inode = (self._run_dir / LIVE_NAME).stat().st_ino
        except OSError:
            inode = 0
        if inode != self._live_inode:
            if self._live is not None:
                self._live.close()
            self._live = LiveReader.open(self._run_dir) if inode else None
            self._live_inode = inode if self._live is not None else 0
            self._versions = (self._versions[0], -1)
        return self._store, self._live

    def _read_rounds(self, store: PageStore, change: Document) -> None:
        first = max(1, len(self._rounds) - UNSETTLED + 1)
        costs, figures = store.round_costs(first), store.figures_on_devices(first)
        changed = []
        for record in store.rounds_from(first):
            cost = costs.get(record.round)
            shown = {
                "round": record.round,
                "accuracy": record.test_accuracy,
                "rmse": record.test_rmse,
                "loss": record.test_loss,
                "quality": record.quality,
                "on_devices": on_devices(figures.get(record.round)),
                "sparsity": record.global_sparsity,
                "up": record.bytes_up,
                "down": record.bytes_down,
                "dense": record.dense_bytes * record.updates,
                "seconds": record.seconds,
                "joules": cost.joules if cost else None,
                "kind": cost.kind if cost else "none",
                "updates": record.updates,
                "refused": record.refused,
            }
            if self._rounds.get(record.round) != shown:
                self._rounds[record.round] = shown
                changed.append(shown)
        if changed:
            change["rounds"] = changed
            number, sparsity = store.layers()
            if number and number != self._layers.get("round"):
                self._layers = change["layers"] = {"round": number, "sparsity": sparsity}


def _facts(store: PageStore, run_dir: Path) -> Document:
    """What the store says of the run itself."""
    run, progress = store.run(), store.progress()
    opened = progress.open if run.state in ("running", "paused") else None
    return {
        "name": run.name,
        "fleet": run.fleet,
        "state": run.state,
        "reason": run.reason,
        "rounds": run.rounds,
        "closed": progress.closed_round,
        "created_at": run.created_at,
        "seen_at": run.seen_at,
        "cohort": list(opened.cohort) if opened else [],
        "accepted": sorted(opened.accepted) if opened else [],
        "round": opened.round if opened else progress.closed_round,
        "is_open": opened is not None,
        "requests": sorted(store.requests()),
        "files": [name for name in ("model.onnx", "model.json") if (run_dir / name).is_file()],
        "began_from": run.began_from,
        "evaluations": [describe_evaluation(each) for each in store.evaluation_rounds()[-SHOWN_EVALUATIONS:]],
    }
