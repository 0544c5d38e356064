"""run.sqlite: what happened in a run, written as it happens by one coordinator and read by anybody."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from sparsyedge.coordinator.deadlines import remember
from sparsyedge.coordinator.records import (
    DeviceRecord,
    Evaluation,
    MemberRecord,
    OpenRecord,
    PhaseRecord,
    Progress,
    RefusalRecord,
    RoundRecord,
    RunRecord,
    RunSummary,
)
from sparsyedge.coordinator.schema import SCHEMA, SCHEMA_VERSION
from sparsyedge.edge.energy import PhaseCost
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.messages import DeviceStatus, Report

__all__ = ["STORE_NAME", "AcceptedUpdate", "ClosedRound", "Store"]

STORE_NAME = "run.sqlite"
BUSY_TIMEOUT_S = 5.0

RunOutcome = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class AcceptedUpdate:
    """An update that will be averaged; its frame is on disk already."""

    round: int
    device: str
    samples: int
    sha256: str
    bytes: int
    nonzeros: int
    """Values that travelled: the weights that are kept, and all of the other tensors."""


@dataclass(frozen=True, kw_only=True)
class ClosedRound:
    """What came of a round."""

    round: int
    model_id: str
    seconds: float
    global_sparsity: float
    evaluation: Evaluation | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The figures of metrics.py, by name."""


class Store:
    """One run's SQLite file; every method is one transaction, durable when it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # The demo builds a coordinator in one thread and runs it in another; only one of them uses it at a time.
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
            )
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            # WAL's own default leaves the last transactions to a power cut, and an acknowledged update must survive it.
            self._db.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise RunError(f"cannot open the run store {path}: {error}; check that it is a run directory") from error

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
        manifest_sha256: str = "",
    ) -> Self:
        """A new store in `run_dir`; raises RunError where a run is there already, which is never overwritten."""
        path = run_dir / STORE_NAME
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except FileExistsError as error:
            raise RunError(f"{run_dir} already holds a run; choose another `run_dir` in the config") from error
        except OSError as error:
            raise RunError(f"cannot make the run directory {run_dir}: {error}; choose another `run_dir`") from error
        store = cls(path)
        now = time.time()
        store._db.executescript(SCHEMA)
        with store._db as db:
            db.execute(
                "INSERT INTO run (name, fleet, state, rounds, created_at, seen_at, pid, dense_bytes, model_id, "
                "manifest_sha256, config) VALUES (?, ?, 'running', ?, ?, ?, ?, ?, '', ?, ?)",
                (name, fleet, rounds, now, now, os.getpid(), dense_bytes, manifest_sha256, config),
            )
        crash_point("before-commit")
        # The version comes last: a store without it was cut short and is refused.
        store._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return store

    @classmethod
    def exists(cls, run_dir: Path) -> bool:
        """Whether a run is there; what is left of one that was cut short while it was set up is removed.

        Only for who holds the lock of the run directory.
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
        """The store of a run that exists; raises RunError where there is none, or one of another version."""
        path = run_dir / STORE_NAME
        if not path.is_file():
            raise RunError(f"no run in {run_dir}: it has no {STORE_NAME}; check the path")
        store = cls(path)
        found = store._version()
        if found == 0:
            store.close()
            raise RunError(f"the run in {run_dir} is only being set up, or was cut short in it; try again in a moment")
        if found != SCHEMA_VERSION:
            store.close()
            raise RunError(
                f"run store {path} has version {found}, this sparsyedge reads version {SCHEMA_VERSION}; "
                f"use the sparsyedge that made the run"
            )
        return store

    def _version(self) -> int:
        version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        return version

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, durable when it ends."""
        with self._db as db:
            yield db
            crash_point("before-commit")
        crash_point("after-commit")

    # ---- what the coordinator writes ---------------------------------------------------------------------------------

    def resume_run(self) -> None:
        """Record that a new process leads the run; requests to the one before are void."""
        with self._transaction() as db:
            db.execute(
                "UPDATE run SET state = 'running', reason = '', pid = ?, seen_at = ?", (os.getpid(), time.time())
            )
            db.execute("DELETE FROM requests WHERE kind = 'stop'")
            db.execute("UPDATE devices SET online = 0")

    def touch(self) -> None:
        """Say that the coordinator is alive."""
        with self._transaction() as db:
            db.execute("UPDATE run SET seen_at = ?", (time.time(),))

    def note_device(self, device: str, status: DeviceStatus) -> None:
        """Record that a device came or went; one that went says nothing about itself, so the rest is kept."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO devices (device, online, samples, software, seen_at) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (device) DO UPDATE SET online = excluded.online, seen_at = excluded.seen_at, "
                "samples = iif(excluded.online, excluded.samples, samples), "
                "software = iif(excluded.online, excluded.software, software)",
                (device, status.state == "online", status.samples, status.software, time.time()),
            )

    def open_round(
        self, round_number: int, *, base: str, base_nonzeros: int, learning_rate: float, cohort: tuple[str, ...]
    ) -> None:
        """Record a round that begins, and how many values of its model travel to a device."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO rounds (round, base_model_id, base_nonzeros, learning_rate, cohort, opened_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (round_number, base, base_nonzeros, learning_rate, json.dumps(cohort), time.time()),
            )

    def extend_round(self, round_number: int, *, cohort: tuple[str, ...], extensions: int) -> None:
        """Record a deadline that passed in vain."""
        with self._transaction() as db:
            db.execute(
                "UPDATE rounds SET cohort = ?, extensions = ? WHERE round = ?",
                (json.dumps(cohort), extensions, round_number),
            )

    def accept_update(self, update: AcceptedUpdate, report: Report) -> None:
        """Record an update and what it cost so far; a second one of the same device and round is a fault of ours."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO updates (round, device, samples, sha256, bytes, nonzeros, accepted_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    update.round,
                    update.device,
                    update.samples,
                    update.sha256,
                    update.bytes,
                    update.nonzeros,
                    time.time(),
                ),
            )
            self._put_report(update.device, update.round, report)

    def add_report(self, device: str, report: Report) -> bool:
        """Record a round's cost once more; False where no update of that device and round was accepted."""
        with self._transaction() as db:
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

    def count_refusals(self, refusals: Mapping[tuple[int, str, str], int]) -> None:
        """Add to the counts by (round, device, reason)."""
        now = time.time()
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO refusals (round, device, reason, count, at) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (round, device, reason) DO UPDATE SET count = count + excluded.count, at = excluded.at",
                [(*key, count, now) for key, count in refusals.items()],
            )

    def close_round(self, closed: ClosedRound) -> None:
        """Record a round's model and how good it is."""
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
            db.executemany(
                "INSERT OR REPLACE INTO metrics (round, name, value) VALUES (?, ?, ?)",
                [(closed.round, name, value) for name, value in closed.metrics.items()],
            )
            db.execute("UPDATE run SET model_id = ?", (closed.model_id,))

    def end_run(self, state: RunOutcome, *, reason: str = "", model_sha256: str | None = None) -> None:
        """Record how the run ended."""
        with self._transaction() as db:
            db.execute(
                "UPDATE run SET state = ?, reason = ?, model_sha256 = ?, seen_at = ?",
                (state, reason, model_sha256, time.time()),
            )

    def request_stop(self) -> None:
        """Ask the coordinator that runs, in whichever process, to stop after its open round."""
        with self._transaction() as db:
            db.execute("INSERT INTO requests (kind, at) VALUES ('stop', ?)", (time.time(),))

    def request_pause(self) -> None:
        """Ask the coordinator to open no round until it is told to go on."""
        with self._transaction() as db:
            db.execute("INSERT INTO requests (kind, at) VALUES ('pause', ?)", (time.time(),))

    def request_resume(self) -> None:
        """Take the request to pause back."""
        with self._transaction() as db:
            db.execute("DELETE FROM requests WHERE kind = 'pause'")

    def set_state(self, state: Literal["running", "paused"]) -> None:
        """Record whether rounds are opened."""
        with self._transaction() as db:
            db.execute("UPDATE run SET state = ?", (state,))

    # ---- what anybody reads ------------------------------------------------------------------------------------------

    def requests(self) -> frozenset[str]:
        """What people asked of the coordinator and has not been taken back: `stop`, `pause`."""
        return frozenset(row["kind"] for row in self._db.execute("SELECT DISTINCT kind FROM requests"))

    def stop_requested(self) -> bool:
        """Whether somebody asked for the run to stop."""
        return "stop" in self.requests()

    def response_times(self) -> dict[str, tuple[float, ...]]:
        """How long each device took for its last updates, from the round's opening to the update's acceptance."""
        rows = self._db.execute(
            "SELECT u.device, u.accepted_at - r.opened_at AS seconds FROM updates u JOIN rounds r ON r.round = u.round "
            "ORDER BY u.device, u.round"
        )
        times: dict[str, tuple[float, ...]] = {}
        for row in rows:
            times = remember(times, row["device"], max(0.0, row["seconds"]))
        return times

    def config(self) -> str:
        """The config that the run was begun with, as JSON."""
        config: str = self._db.execute("SELECT config FROM run").fetchone()[0]
        return config

    def manifest_sha256(self) -> str:
        """The manifest of the artifacts that the run was begun with."""
        sha256: str = self._db.execute("SELECT manifest_sha256 FROM run").fetchone()[0]
        return sha256

    def progress(self) -> Progress:
        """How far the run is: what a coordinator must know to go on with it."""
        closed = self._db.execute(
            "SELECT round, base_model_id, model_id FROM rounds WHERE closed_at IS NOT NULL ORDER BY round DESC LIMIT 1"
        ).fetchone()
        row = self._db.execute(
            "SELECT round, cohort, extensions, opened_at FROM rounds WHERE closed_at IS NULL ORDER BY round LIMIT 1"
        ).fetchone()
        opened = None
        if row is not None:
            opened = OpenRecord(
                round=row["round"],
                cohort=tuple(json.loads(row["cohort"])),
                extensions=row["extensions"],
                opened_at=row["opened_at"],
                accepted=self.accepted(row["round"]),
            )
        return Progress(
            closed_round=closed["round"] if closed else 0,
            model_id=closed["model_id"] if closed else None,
            base_model_id=closed["base_model_id"] if closed else None,
            closed_accepted=self.accepted(closed["round"]) if closed else {},
            open=opened,
        )

    def accepted(self, round_number: int) -> dict[str, str]:
        """The hash of every accepted update of a round, by device."""
        rows = self._db.execute("SELECT device, sha256 FROM updates WHERE round = ?", (round_number,))
        return {row["device"]: row["sha256"] for row in rows}

    def acceptance_times(self, round_number: int) -> list[float]:
        """When each update of a round was accepted."""
        rows = self._db.execute("SELECT accepted_at FROM updates WHERE round = ? ORDER BY accepted_at", (round_number,))
        return [row["accepted_at"] for row in rows]

    def samples(self, round_number: int) -> dict[str, int]:
        """The weight of every accepted update of a round, by device."""
        rows = self._db.execute("SELECT device, samples FROM updates WHERE round = ?", (round_number,))
        return {row["device"]: row["samples"] for row in rows}

    def run(self) -> RunRecord:
        """The run itself."""
        row = self._db.execute(
            "SELECT name, fleet, state, reason, rounds, created_at, seen_at, pid, dense_bytes, model_id, model_sha256 "
            "FROM run"
        ).fetchone()
        return RunRecord(**dict(row))

    def rounds(self) -> tuple[RoundRecord, ...]:
        """The closed rounds in order."""
        rows = self._db.execute(
            "SELECT r.round, r.test_accuracy, r.test_loss, r.global_sparsity, r.seconds, r.learning_rate, r.model_id, "
            "  run.dense_bytes, "
            "  (SELECT COUNT(*) FROM updates u WHERE u.round = r.round) AS updates, "
            "  (SELECT COALESCE(SUM(u.bytes), 0) FROM updates u WHERE u.round = r.round) AS bytes_up, "
            "  (SELECT COALESCE(SUM(p.bytes_down), 0) FROM reports p WHERE p.round = r.round) AS bytes_down, "
            "  (SELECT COALESCE(SUM(u.nonzeros), 0) FROM updates u WHERE u.round = r.round) AS nonzeros_up, "
            "  (SELECT COUNT(*) FROM updates u WHERE u.round = r.round) * r.base_nonzeros AS nonzeros_down, "
            "  (SELECT COALESCE(SUM(f.count), 0) FROM refusals f WHERE f.round = r.round) AS refused "
            "FROM rounds r, run WHERE r.closed_at IS NOT NULL ORDER BY r.round"
        )
        return tuple(RoundRecord(**dict(row)) for row in rows)

    def metrics(self) -> dict[int, dict[str, float]]:
        """The figures of every closed round by name: those of the model, then what devices reported, averaged."""
        figures: dict[int, dict[str, float]] = {}
        for row in self._db.execute("SELECT round, name, value FROM metrics ORDER BY round, rowid"):
            figures.setdefault(row["round"], {})[row["name"]] = math.nan if row["value"] is None else row["value"]
        reported = self._db.execute(
            "SELECT r.round, AVG(r.loss) AS loss_devices, AVG(r.regrown) AS regrown_devices, "
            "  (SELECT SUM(p.seconds) FROM phases p WHERE p.round = r.round) / COUNT(*) AS seconds_device, "
            "  (SELECT SUM(p.joules) FROM phases p WHERE p.round = r.round) / COUNT(*) AS joules_device "
            "FROM reports r GROUP BY r.round"
        )
        for row in reported:
            values = {name: row[name] for name in row.keys() if name != "round" and row[name] is not None}  # noqa: SIM118
            if row["round"] in figures:
                figures[row["round"]] |= values
        return figures

    def devices(self) -> tuple[DeviceRecord, ...]:
        """The devices of which an update was accepted, in order of their names."""
        rows = self._db.execute(
            "SELECT r.device AS id, COUNT(*) AS rounds, SUM(r.steps) AS steps, MAX(r.peak_rss_mb) AS peak_rss_mb, "
            "  SUM(r.bytes_down) AS bytes_down, SUM(r.bytes_up) AS bytes_up, "
            "  COALESCE((SELECT d.online FROM devices d WHERE d.device = r.device), 0) AS online, "
            "  l.pid, l.loss AS last_loss, l.source AS energy_source, l.kind AS energy_kind, "
            "  l.hz AS energy_hz, l.idle_w "
            "FROM reports r JOIN reports l ON l.device = r.device "
            "  AND l.round = (SELECT MAX(m.round) FROM reports m WHERE m.device = r.device) "
            "GROUP BY r.device ORDER BY r.device"
        ).fetchall()
        phases = self._phases()
        return tuple(
            DeviceRecord(**{**dict(row), "online": bool(row["online"]), "phases": phases.get(row["id"], {})})
            for row in rows
        )

    def members(self) -> tuple[MemberRecord, ...]:
        """Everybody who was heard of, in order of their names."""
        refusals: dict[str, list[RefusalRecord]] = {}
        for refusal in self.refusals():
            refusals.setdefault(refusal.device, []).append(refusal)
        rows = self._db.execute(
            "SELECT n.device, COALESCE(d.online, 0) AS online, "
            "  MAX(COALESCE(d.seen_at, 0), "
            "      COALESCE((SELECT MAX(accepted_at) FROM updates u WHERE u.device = n.device), 0), "
            "      COALESCE((SELECT MAX(at) FROM refusals f WHERE f.device = n.device), 0)) AS seen_at, "
            "  (SELECT MAX(round) FROM updates u WHERE u.device = n.device) AS last_round, "
            "  (SELECT COUNT(*) FROM updates u WHERE u.device = n.device) AS updates, "
            "  (SELECT COALESCE(SUM(seconds), 0.0) FROM phases p WHERE p.device = n.device) AS seconds, "
            "  (SELECT SUM(joules) FROM phases p WHERE p.device = n.device) AS joules, "
            "  (SELECT COALESCE(SUM(bytes_down), 0) FROM reports r WHERE r.device = n.device) AS bytes_down, "
            "  (SELECT COALESCE(SUM(bytes_up), 0) FROM reports r WHERE r.device = n.device) AS bytes_up, "
            "  COALESCE((SELECT kind FROM reports r WHERE r.device = n.device ORDER BY round DESC LIMIT 1), 'none') "
            "    AS energy_kind "
            "FROM (SELECT device FROM devices UNION SELECT device FROM updates UNION SELECT device FROM refusals) n "
            "LEFT JOIN devices d ON d.device = n.device ORDER BY n.device"
        )
        return tuple(
            MemberRecord(
                **{
                    **dict(row),
                    "online": bool(row["online"]),
                    "seen_at": row["seen_at"] or None,
                    "refusals": tuple(refusals.get(row["device"], ())),
                }
            )
            for row in rows.fetchall()
        )

    def _phases(self) -> dict[str, dict[str, PhaseCost]]:
        """What each phase cost each device in all; joules are None where no round of it has any."""
        rows = self._db.execute(
            "SELECT device, phase, SUM(seconds) AS seconds, SUM(joules) AS joules FROM phases "
            "GROUP BY device, phase ORDER BY device, MIN(rowid)"
        )
        costs: dict[str, dict[str, PhaseCost]] = {}
        for row in rows:
            costs.setdefault(row["device"], {})[row["phase"]] = PhaseCost(row["seconds"], row["joules"])
        return costs

    def phase_records(self) -> tuple[PhaseRecord, ...]:
        """What every phase cost, in order of rounds, devices and of the phases themselves."""
        rows = self._db.execute(
            "SELECT round, device, phase, seconds, joules, kind FROM phases ORDER BY round, device, rowid"
        )
        return tuple(PhaseRecord(**dict(row)) for row in rows)

    def opened_at(self) -> dict[int, float]:
        """When each round was announced."""
        return {row["round"]: row["opened_at"] for row in self._db.execute("SELECT round, opened_at FROM rounds")}

    def refusals(self) -> tuple[RefusalRecord, ...]:
        """What was not taken, in order of rounds."""
        rows = self._db.execute("SELECT round, device, reason, count FROM refusals ORDER BY round, device, reason")
        return tuple(RefusalRecord(**dict(row)) for row in rows)

    def summary(self) -> RunSummary:
        """Everything at once."""
        return RunSummary(
            run=self.run(),
            run_dir=str(self._path.parent.resolve()),
            rounds=self.rounds(),
            devices=self.devices(),
            refusals=self.refusals(),
        )
