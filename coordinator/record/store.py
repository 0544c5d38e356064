"""run.sqlite: the record of a run. One coordinator writes it as the run goes on; anyone may read it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import msgspec

from sparsyedge.coordinator.aggregation.influence import Share
from sparsyedge.coordinator.record.database import closed_on_error
from sparsyedge.coordinator.record.device_evaluations import EvaluationRound, figures_of
from sparsyedge.coordinator.record.evaluation_rows import put_data_note, put_evaluation
from sparsyedge.coordinator.record.past_rows import ensure_losses, put_loss
from sparsyedge.coordinator.record.records import Evaluation, Stretch
from sparsyedge.coordinator.record.schema import SCHEMA, SCHEMA_VERSION
from sparsyedge.coordinator.record.store_reader import StoreReader
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.messages import DataNote, DeviceStatus, HeldModel, LocalEvaluation, Report, UpgradeStatus
from sparsyedge.edge.storage import make_private_folder

__all__ = ["STORE_NAME", "AcceptedUpdate", "ClosedRound", "Store"]

STORE_NAME = "run.sqlite"

RunOutcome = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class AcceptedUpdate:
    """An update to average; its frame is already written."""

    round: int
    device: str
    samples: int
    sha256: str
    bytes: int
    position: int = 0
    """Where its frame begins in the round's file of updates."""
    nonzeros: int
    """Values sent: the kept weights, and all values of the other tensors."""
    signature: str = ""
    """The device's signature of its offer; empty in a fleet without an authority."""


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """The outcome of a round."""

    round: int
    model_id: str
    seconds: float
    global_sparsity: float
    evaluation: Evaluation | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The figures of metrics.py, by name."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """What each update counted for, by device."""


class Store(StoreReader):
    """One run's SQLite file; every method is one transaction, durable when it returns.

    After `hold`, methods that say so only take part in a transaction: `commit` makes it durable, and so does any other
    method that writes.
    """

    before_commit: Callable[[], None] | None = None
    """Called before every commit: it makes the files durable that the transaction refers to."""
    _holds = False

    @classmethod
    def create(
        cls,
        run_dir: Path,
        *,
        name: str,
        fleet: str,
        rounds: int,
        dense_bytes: int,
        config: str,
        artifacts_id: str = "",
        began_from: str = "",
    ) -> Self:
        """Create a store in `run_dir`; raises RunError if it already holds a run, and never overwrites one."""
        path = run_dir / STORE_NAME
        try:
            make_private_folder(run_dir)
            # SQLite creates its other files with the same mode.
            path.touch(mode=0o600, exist_ok=False)
        except FileExistsError as error:
            raise RunError(f"{run_dir} already holds a run; choose another `run_dir` in the config") from error
        except OSError as error:
            raise RunError(f"cannot make the run directory {run_dir}: {error}; choose another `run_dir`") from error
        store = cls(path)
        now = time.time()
        with closed_on_error(store._db):
            store._db.executescript(SCHEMA)
            ensure_losses(store._db)
            with store._db as db:
                db.execute(
                    "INSERT INTO run (name, fleet, state, rounds, created_at, seen_at, pid, dense_bytes, model_id, "
                    "artifacts_id, began_from, config) VALUES (?, ?, 'running', ?, ?, ?, ?, ?, '', ?, ?, ?)",
                    (name, fleet, rounds, now, now, os.getpid(), dense_bytes, artifacts_id, began_from, config),
                )
                db.execute("INSERT INTO stretches VALUES (1, ?, ?, ?)", (rounds, config, now))
            crash_point("before-commit")
            # Set the version last: a store without it is incomplete, and `open` refuses it.
            store._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return store

    @classmethod
    def exists(cls, run_dir: Path) -> bool:
        """Return whether the directory holds a run; removes a store whose setup was interrupted.

        The caller must hold the lock of the run directory.
        """
        path = run_dir / STORE_NAME
        if not path.is_file():
            return False
        with closing(cls(path)) as store:
            if store._version() != 0:
                return True
        for suffix in ("", "-wal", "-shm"):
            (run_dir / f"{STORE_NAME}{suffix}").unlink(missing_ok=True)
        return False

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """Open the store of an existing run; raises RunError if there is none or its version differs."""
        path = run_dir / STORE_NAME
        if not path.is_file():
            raise RunError(f"no run in {run_dir}: it has no {STORE_NAME}; check the path")
        store = cls(path)
        with closed_on_error(store._db):
            found = store._version()
            if found == 0:
                raise RunError(
                    f"the run in {run_dir} is only being set up, or was cut short in it; try again in a moment"
                )
            if found != SCHEMA_VERSION:
                raise RunError(
                    f"run store {path} has version {found}, this sparsyedge reads version {SCHEMA_VERSION}; "
                    f"use the sparsyedge that made the run"
                )
            ensure_losses(store._db)
        return store

    def _version(self) -> int:
        version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        return version

    def hold(self) -> None:
        """From now on, let what may wait for a commit do so: a commit costs a sync of the disk."""
        self._holds = True

    def commit(self) -> None:
        """Make everything durable that was written so far."""
        try:
            if self._db.in_transaction:
                if self.before_commit is not None:
                    self.before_commit()
                crash_point("before-commit")
                self._db.commit()
                crash_point("after-commit")
        finally:
            if self._db.in_transaction:
                self._db.rollback()

    @contextmanager
    def _transaction(self, *, may_wait: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a transaction: all or nothing, and durable at the end of the block unless it may wait."""
        try:
            yield self._db
        except BaseException:
            self._db.rollback()
            raise
        if not (may_wait and self._holds):
            self.commit()

    def resume_run(self, *, stretch: Stretch | None = None, config: str = "") -> None:
        """Record that a new process leads the run; drops stop requests to the previous one.

        A `stretch` changes the number of rounds and the `config` from here on.
        """
        with self._transaction() as db:
            if stretch is not None:
                db.execute(
                    "INSERT OR REPLACE INTO stretches VALUES (?, ?, ?, ?)",
                    (stretch.first_round, stretch.rounds, config, time.time()),
                )
                db.execute("UPDATE run SET rounds = ?, config = ?", (stretch.rounds, config))
            db.execute(
                "UPDATE run SET state = 'running', reason = '', pid = ?, seen_at = ?", (os.getpid(), time.time())
            )
            db.execute("DELETE FROM requests WHERE kind = 'stop'")
            db.execute("UPDATE devices SET online = 0, unfit = ''")

    def touch(self) -> None:
        """Record that the coordinator is alive."""
        with self._transaction() as db:
            db.execute("UPDATE run SET seen_at = ?", (time.time(),))

    def note_device(self, device: str, status: DeviceStatus) -> None:
        """Record that a device came, went or became unfit. Keeps the data of one that went: its status has none.

        May wait for a commit.
        """
        with self._transaction(may_wait=True) as db:
            db.execute(
                "INSERT INTO devices (device, online, samples, software, unfit, seen_at) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (device) DO UPDATE SET online = excluded.online, seen_at = excluded.seen_at, "
                "unfit = excluded.unfit, "
                "samples = iif(excluded.online, excluded.samples, samples), "
                "software = iif(excluded.online, excluded.software, software)",
                (device, status.state == "online", status.samples, status.software, status.unfit, time.time()),
            )

    def note_settings(self, device: str, settings: DeviceSettings) -> None:
        """Record what a device says of its machine and limits; may wait for a commit."""
        with self._transaction(may_wait=True) as db:
            db.execute(
                "INSERT OR REPLACE INTO device_settings VALUES (?, ?)", (device, msgspec.json.encode(settings).decode())
            )

    def note_model(self, device: str, held: HeldModel) -> None:
        """Record the model that a device predicts with, and how long that takes it; may wait for a commit."""
        with self._transaction(may_wait=True) as db:
            db.execute(
                "UPDATE devices SET model_round = ?, predict_ms = ? WHERE device = ?",
                (held.round, held.predict_ms, device),
            )

    def note_upgrade(self, device: str, upgrade: UpgradeStatus) -> None:
        """Record how far a device is with the release that it was told to install; may wait for a commit."""
        with self._transaction(may_wait=True) as db:
            db.execute(
                "UPDATE devices SET upgrade = ?, upgrade_reason = ? WHERE device = ?",
                (upgrade.stage, upgrade.reason, device),
            )

    def note_alarm(self, device: str, alarm: str) -> None:
        """Record a problem with a device that goes beyond a single message; may wait for a commit."""
        with self._transaction(may_wait=True) as db:
            db.execute("UPDATE devices SET alarm = ? WHERE device = ?", (alarm, device))

    def open_round(
        self, round_number: int, *, base: str, base_nonzeros: float, learning_rate: float, cohort: tuple[str, ...]
    ) -> None:
        """Record the start of a round, and how many values of its model each device receives."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO rounds (round, base_model_id, base_nonzeros, learning_rate, cohort, opened_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (round_number, base, base_nonzeros, learning_rate, json.dumps(cohort), time.time()),
            )

    def extend_round(self, round_number: int, *, cohort: tuple[str, ...], extensions: int) -> None:
        """Record that the deadline passed with too few updates, and the new cohort."""
        with self._transaction() as db:
            db.execute(
                "UPDATE rounds SET cohort = ?, extensions = ? WHERE round = ?",
                (json.dumps(cohort), extensions, round_number),
            )

    def replace_member(self, round_number: int, *, cohort: tuple[str, ...]) -> None:
        """Record the cohort after devices replaced some that will not train."""
        with self._transaction() as db:
            db.execute("UPDATE rounds SET cohort = ? WHERE round = ?", (json.dumps(cohort), round_number))

    def accept_update(self, update: AcceptedUpdate, report: Report) -> None:
        """Record an update and its cost so far; a second one for the same device and round is a bug on our side.

        May wait for a commit.
        """
        with self._transaction(may_wait=True) as db:
            db.execute(
                "INSERT INTO updates "
                "(round, device, samples, sha256, bytes, position, nonzeros, signature, accepted_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    update.round,
                    update.device,
                    update.samples,
                    update.sha256,
                    update.bytes,
                    update.position,
                    update.nonzeros,
                    update.signature,
                    time.time(),
                ),
            )
            self._put_report(update.device, update.round, report)

    def add_report(self, device: str, report: Report) -> bool:
        """Replace a round's cost report; returns False if no update of that device and round was accepted.

        May wait for a commit.
        """
        with self._transaction(may_wait=True) as db:
            known = db.execute(
                "SELECT 1 FROM updates WHERE round = ? AND device = ?", (report.round, device)
            ).fetchone()
            if known:
                self._put_report(device, report.round, report)
        return known is not None

    def _put_report(self, device: str, round_number: int, report: Report) -> None:
        source, kind = report.energy_source, report.energy_kind
        self._db.execute(
            "INSERT OR REPLACE INTO reports "
            "(round, device, pid, steps, loss, peak_rss_mb, bytes_down, bytes_up, source, kind, hz, idle_w, regrown) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                round_number,
                device,
                report.pid,
                report.steps,
                report.loss,
                report.peak_rss_mb,
                report.bytes_down,
                report.bytes_up,
                source,
                kind,
                report.energy_hz,
                report.idle_w,
                report.regrown,
            ),
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO phases (round, device, phase, seconds, joules, source, kind) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (round_number, device, phase, cost.seconds, cost.joules, source, kind)
                for phase, cost in report.phases.items()
            ],
        )
        if isinstance(report.loss_rms, float):
            put_loss(self._db, device, round_number, report.loss_rms)
        if isinstance(report.evaluated, LocalEvaluation) and report.evaluated.samples:
            put_evaluation(self._db, device, report.evaluated, round_number=round_number)
        if isinstance(report.data, DataNote):
            put_data_note(self._db, device, round_number, report.data)

    def begin_evaluation(self, *, round_number: int, model_id: str, asked: int) -> int:
        """Record the start of an evaluation round; returns its number, from 1."""
        with self._transaction() as db:
            (number,) = db.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM evaluations").fetchone()
            db.execute(
                "INSERT INTO evaluations (number, round, model_id, asked, begun_at) VALUES (?, ?, ?, ?, ?)",
                (number, round_number, model_id, asked, time.time()),
            )
        return int(number)

    def add_evaluation(self, number: int, device: str, report: Report, *, round_number: int) -> None:
        """Record a device's answer in an evaluation round; may wait for a commit."""
        if not isinstance(report.evaluated, LocalEvaluation):
            return
        joules = [cost.joules for cost in report.phases.values()]
        with self._transaction(may_wait=True) as db:
            put_evaluation(
                db,
                device,
                report.evaluated,
                round_number=round_number,
                number=number,
                seconds=sum(cost.seconds for cost in report.phases.values()),
                joules=sum(each for each in joules if each is not None) if None not in joules else None,
            )

    def end_evaluation(self, number: int) -> EvaluationRound:
        """Record the end of an evaluation round and what it came to."""
        figures = figures_of(self.device_evaluations(evaluation=number))
        with self._transaction() as db:
            db.execute(
                "UPDATE evaluations SET ended_at = ?, figures = ? WHERE number = ?",
                (time.time(), json.dumps(figures), number),
            )
        return next(each for each in self.evaluation_rounds() if each.number == number)

    def request_evaluation(self) -> None:
        """Ask the coordinator for an evaluation round between two others."""
        with self._transaction() as db:
            db.execute("INSERT INTO requests (kind, at) VALUES ('evaluate', ?)", (time.time(),))

    def drop_evaluation_requests(self) -> None:
        """Forget the requests for an evaluation round: one is under way, or nobody will lead it."""
        with self._transaction() as db:
            db.execute("DELETE FROM requests WHERE kind = 'evaluate'")

    def count_refusals(self, refusals: Mapping[tuple[int, str, str], tuple[int, str]]) -> None:
        """Add to the counts by (round, device, kind); keeps the last reason of each."""
        now = time.time()
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO refusals (round, device, kind, count, reason, at) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (round, device, kind) DO UPDATE SET count = count + excluded.count, "
                "reason = excluded.reason, at = excluded.at",
                [(*key, count, reason, now) for key, (count, reason) in refusals.items()],
            )

    def close_round(self, closed: ClosedRound) -> None:
        """Record a round's model, evaluation and figures."""
        evaluation = closed.evaluation
        with self._transaction() as db:
            db.execute(
                "UPDATE rounds SET closed_at = ?, seconds = ?, model_id = ?, global_sparsity = ?, test_accuracy = ?, "
                "test_loss = ? WHERE round = ?",
                (
                    time.time(),
                    closed.seconds,
                    closed.model_id,
                    closed.global_sparsity,
                    evaluation.accuracy if evaluation else None,
                    evaluation.loss if evaluation else None,
                    closed.round,
                ),
            )
            self._put_figures(closed.round, closed.metrics)
            db.executemany(
                "INSERT OR REPLACE INTO adjustments (round, device, samples, weight, cut, clipped) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (closed.round, device, share.samples, share.weight, share.cut, share.clipped)
                    for device, share in closed.shares.items()
                    if share.cut or share.clipped < 1
                ],
            )
            db.execute("UPDATE run SET model_id = ?", (closed.model_id,))

    def note_evaluation(self, round_number: int, evaluation: Evaluation, figures: Mapping[str, float]) -> None:
        """Record the evaluation of a closed round, with the figures that belong to it."""
        with self._transaction() as db:
            db.execute(
                "UPDATE rounds SET test_accuracy = ?, test_loss = ? WHERE round = ?",
                (evaluation.accuracy, evaluation.loss, round_number),
            )
            self._put_figures(round_number, figures)

    def note_figures(self, round_number: int, figures: Mapping[str, float]) -> None:
        """Record further figures of a closed round, by name."""
        with self._transaction():
            self._put_figures(round_number, figures)

    def _put_figures(self, round_number: int, figures: Mapping[str, float]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO metrics (round, name, value) VALUES (?, ?, ?)",
            [(round_number, name, value) for name, value in figures.items()],
        )

    def end_run(self, state: RunOutcome, *, reason: str = "", model_sha256: str | None = None) -> None:
        """Record how the run ended."""
        with self._transaction() as db:
            db.execute(
                "UPDATE run SET state = ?, reason = ?, model_sha256 = ?, seen_at = ?",
                (state, reason, model_sha256, time.time()),
            )

    def note_quarantine(self, device: str, *, until_round: int, reason: str) -> None:
        """Record until which round a device is in quarantine, and why; round 0 ends the quarantine."""
        with self._transaction() as db:
            db.execute(
                "UPDATE devices SET quarantined_until = ?, quarantine = ? WHERE device = ?",
                (until_round, reason, device),
            )

    def take_releases(self) -> tuple[str, ...]:
        """Take the pending requests to release devices from quarantine; returns each device once."""
        rows = self._db.execute("SELECT device FROM requests WHERE kind = 'release'").fetchall()
        if rows:
            with self._transaction() as db:
                db.execute("DELETE FROM requests WHERE kind = 'release'")
        return tuple(row["device"] for row in rows)

    def request_release(self, device: str) -> None:
        """Ask the coordinator to release a device from quarantine."""
        with self._transaction() as db:
            db.execute("INSERT INTO requests (kind, device, at) VALUES ('release', ?, ?)", (device, time.time()))

    def request_stop(self) -> None:
        """Ask the running coordinator, in any process, to stop after its open round."""
        with self._transaction() as db:
            db.execute("INSERT INTO requests (kind, at) VALUES ('stop', ?)", (time.time(),))

    def request_pause(self) -> None:
        """Ask the coordinator to open no more rounds until it is resumed."""
        with self._transaction() as db:
            db.execute("INSERT INTO requests (kind, at) VALUES ('pause', ?)", (time.time(),))

    def request_resume(self) -> None:
        """Withdraw the request to pause."""
        with self._transaction() as db:
            db.execute("DELETE FROM requests WHERE kind = 'pause'")

    def set_state(self, state: Literal["running", "paused"]) -> None:
        """Record whether rounds are opened."""
        with self._transaction() as db:
            db.execute("UPDATE run SET state = ?", (state,))
