"""Reads run.sqlite; store.py writes it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import msgspec

from sparsyedge.coordinator.record.database import closed_on_error, open_database
from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation, EvaluationRound
from sparsyedge.coordinator.record.energy_kinds import LEAST_TRUSTED
from sparsyedge.coordinator.record.past_rows import read_past
from sparsyedge.coordinator.record.records import (
    AdjustmentRecord,
    DataRecord,
    DeviceRecord,
    KeptUpdate,
    MemberRecord,
    PhaseRecord,
    RefusalRecord,
    RoundRecord,
    RunRecord,
    RunSummary,
    Stretch,
)
from sparsyedge.coordinator.rounds.conduct import STRIKES, Conduct
from sparsyedge.coordinator.rounds.deadlines import PROBATION_ROUNDS, remember
from sparsyedge.coordinator.rounds.past import Past
from sparsyedge.coordinator.rounds.progress import OpenRecord, Progress
from sparsyedge.coordinator.rounds.table import Table
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.device_settings import DeviceSettings

__all__ = ["StoreReader", "evaluation_of"]

EVALUATION_COLUMNS = tuple(each.name for each in fields(DeviceEvaluation))
DATA_COLUMNS = tuple(each.name for each in fields(DataRecord))

BUSY_TIMEOUT_S = 5.0

_SETTINGS_DECODER = msgspec.json.Decoder(DeviceSettings)


class StoreReader:
    """The reading half of a run's SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # The demo builds a coordinator in one thread and runs it in another, but never uses it from both at once.
            self._db = open_database(path, name="the run store", timeout_s=BUSY_TIMEOUT_S, any_thread=True)
            with closed_on_error(self._db):
                self._db.execute("PRAGMA journal_mode = WAL")
                # With WAL's default a power cut can lose the last transactions, but acknowledged updates must survive.
                self._db.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise RunError(f"cannot open the run store {path}: {error}; check that it is a run directory") from error

    def wait_for_lock(self, keep_waiting: Callable[[], bool]) -> None:
        """From now on, wait for a locked file while `keep_waiting` returns True, instead of giving up."""
        self._db.keep_waiting = keep_waiting

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def requests(self) -> frozenset[str]:
        """Return the kinds of pending requests to the coordinator: `stop`, `pause`, `release`."""
        return frozenset(row["kind"] for row in self._db.execute("SELECT DISTINCT kind FROM requests"))

    def stop_requested(self) -> bool:
        """Return whether somebody asked the run to stop."""
        return "stop" in self.requests()

    def response_times(self) -> Mapping[str, tuple[float, ...]]:
        """Return how many seconds each device's last updates took, from the round's opening to their acceptance."""
        rows = self._db.execute(
            # Somebody may have set the clock in between. The round's `seconds` come from a monotonic clock.
            "SELECT u.device, MIN(u.accepted_at - r.opened_at, COALESCE(r.seconds, 1e300)) AS seconds "
            "FROM updates u JOIN rounds r ON r.round = u.round ORDER BY u.device, u.round"
        )
        times: Table[tuple[float, ...]] = Table()
        for row in rows:
            times = remember(times, row["device"], max(0.0, row["seconds"]))
        return times

    def past(self) -> Mapping[str, Past]:
        """What is on record of every device, for a cohort that is chosen by it; goes through all rounds."""
        return read_past(self._db)

    def config(self) -> str:
        """Return the run's current config as JSON."""
        config: str = self._db.execute("SELECT config FROM run").fetchone()[0]
        return config

    def artifacts_id(self) -> str:
        """Return the id of the artifacts that the run started with."""
        found: str = self._db.execute("SELECT artifacts_id FROM run").fetchone()[0]
        return found

    def progress(self) -> Progress:
        """Return the progress that a coordinator needs to resume the run."""
        closed = self._db.execute(
            "SELECT round, base_model_id, model_id FROM rounds WHERE closed_at IS NOT NULL ORDER BY round DESC LIMIT 1"
        ).fetchone()
        row = self._db.execute(
            "SELECT round, cohort, extensions, opened_at, learning_rate FROM rounds WHERE closed_at IS NULL "
            "ORDER BY round LIMIT 1"
        ).fetchone()
        opened = None
        if row is not None:
            opened = OpenRecord(
                round=row["round"],
                cohort=tuple(json.loads(row["cohort"])),
                extensions=row["extensions"],
                opened_at=row["opened_at"],
                accepted=self.accepted(row["round"]),
                learning_rate=row["learning_rate"],
            )
        return Progress(
            closed_round=closed["round"] if closed else 0,
            model_id=closed["model_id"] if closed else None,
            base_model_id=closed["base_model_id"] if closed else None,
            closed_accepted=self.accepted(closed["round"]) if closed else {},
            open=opened,
            first_round=self.stretches()[-1].first_round,
        )

    def quarantines(self) -> dict[str, Conduct]:
        """Return the devices in quarantine, with what a coordinator needs to resume."""
        rows = self._db.execute("SELECT device, quarantined_until, quarantine FROM devices WHERE quarantined_until > 0")
        return {
            row["device"]: Conduct(
                cause="failed",
                reason=row["quarantine"],
                strikes=STRIKES,
                last_round=0,
                until_round=row["quarantined_until"],
            )
            for row in rows
        }

    def missed(self, *, cohort_size: int) -> dict[str, int]:
        """Return the last recent round that each device was asked to train in but sent no update for.

        Skips rounds that got `cohort_size` updates: they did not need the others.
        """
        rows = self._db.execute(
            "SELECT round, cohort FROM rounds WHERE closed_at IS NOT NULL ORDER BY round DESC LIMIT ?",
            (PROBATION_ROUNDS,),
        ).fetchall()
        missed: dict[str, int] = {}
        for row in reversed(rows):
            accepted = self.accepted(row["round"])
            if len(accepted) < cohort_size:
                absent = set(json.loads(row["cohort"])) - set(accepted)
                missed |= dict.fromkeys(absent, row["round"])
        return missed

    def stretches(self) -> tuple[Stretch, ...]:
        """Return the planned numbers of rounds, ordered by the round from which each applied."""
        rows = self._db.execute("SELECT first_round, rounds FROM stretches ORDER BY first_round")
        return tuple(Stretch(**dict(row)) for row in rows)

    def accepted(self, round_number: int) -> dict[str, str]:
        """The hash of every accepted update of a round, by device."""
        rows = self._db.execute("SELECT device, sha256 FROM updates WHERE round = ?", (round_number,))
        return {row["device"]: row["sha256"] for row in rows}

    def signatures(self, round_number: int) -> dict[str, str]:
        """The device's signature of every accepted update of a round, by device."""
        rows = self._db.execute("SELECT device, signature FROM updates WHERE round = ?", (round_number,))
        return {row["device"]: row["signature"] for row in rows}

    def acceptance_times(self, round_number: int) -> list[float]:
        """When each update of a round was accepted."""
        rows = self._db.execute("SELECT accepted_at FROM updates WHERE round = ? ORDER BY accepted_at", (round_number,))
        return [row["accepted_at"] for row in rows]

    def count_updates(self, round_number: int) -> int:
        """How many updates of a round were accepted; goes through them."""
        count: int = self._db.execute("SELECT COUNT(*) FROM updates WHERE round = ?", (round_number,)).fetchone()[0]
        return count

    def end_of_frames(self, round_number: int) -> int:
        """Where the next frame goes in a round's file of updates: after all that are recorded."""
        row = self._db.execute("SELECT MAX(position + bytes) FROM updates WHERE round = ?", (round_number,)).fetchone()
        return row[0] or 0

    def kept_updates(self, round_number: int, devices: Sequence[str]) -> dict[str, KeptUpdate]:
        """Where the frames of these devices' updates are, what they claim and what they must hash to."""
        query = "SELECT device, samples, sha256, bytes, position FROM updates WHERE round = ?"
        if len(devices) == 1:
            rows = self._db.execute(f"{query} AND device = ?", (round_number, devices[0]))
        else:
            rows = self._db.execute(query, (round_number,))
        return {row["device"]: KeptUpdate(row["samples"], row["sha256"], row["bytes"], row["position"]) for row in rows}

    def samples(self, round_number: int) -> dict[str, int]:
        """Return the claimed samples of each accepted update of a round, by device."""
        rows = self._db.execute("SELECT device, samples FROM updates WHERE round = ?", (round_number,))
        return {row["device"]: row["samples"] for row in rows}

    def run(self) -> RunRecord:
        """The run itself."""
        row = self._db.execute(
            "SELECT name, fleet, state, reason, rounds, created_at, seen_at, pid, dense_bytes, model_id, model_sha256, "
            "began_from FROM run"
        ).fetchone()
        return RunRecord(**dict(row))

    def rounds(self) -> tuple[RoundRecord, ...]:
        """The closed rounds in order."""
        return self._rounds("1")

    def closed_round(self, round_number: int) -> RoundRecord:
        """One closed round; takes no longer if there are many."""
        (found,) = self._rounds("r.round = ?", round_number)
        return found

    def _rounds(self, condition: str, *values: int) -> tuple[RoundRecord, ...]:
        rows = self._db.execute(
            "SELECT r.round, r.test_accuracy, r.test_loss, r.global_sparsity, r.seconds, r.learning_rate, r.model_id, "
            "  run.dense_bytes, "
            "  (SELECT COUNT(*) FROM updates u WHERE u.round = r.round) AS updates, "
            "  (SELECT COALESCE(SUM(u.bytes), 0) FROM updates u WHERE u.round = r.round) AS bytes_up, "
            "  (SELECT COALESCE(SUM(p.bytes_down), 0) FROM reports p WHERE p.round = r.round) AS bytes_down, "
            "  (SELECT COALESCE(SUM(u.nonzeros), 0) FROM updates u WHERE u.round = r.round) AS nonzeros_up, "
            # A mean over the cohort where groups download models of their own sizes.
            "  CAST(ROUND((SELECT COUNT(*) FROM updates u WHERE u.round = r.round) * r.base_nonzeros) AS INTEGER) "
            "    AS nonzeros_down, "
            "  (SELECT COALESCE(SUM(f.count), 0) FROM refusals f WHERE f.round = r.round) AS refused, "
            "  (SELECT m.value FROM metrics m WHERE m.round = r.round AND m.name = 'test_rmse') AS test_rmse, "
            "  (SELECT m.value FROM metrics m WHERE m.round = r.round AND m.name = 'test_r_squared') AS test_r_squared "
            f"FROM rounds r, run WHERE r.closed_at IS NOT NULL AND {condition} ORDER BY r.round",
            values,
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
        """Return the devices with an accepted update, ordered by name."""
        rows = self._db.execute(
            "SELECT r.device AS id, COUNT(*) AS rounds, SUM(r.steps) AS steps, MAX(r.peak_rss_mb) AS peak_rss_mb, "
            "  SUM(r.bytes_down) AS bytes_down, SUM(r.bytes_up) AS bytes_up, "
            "  COALESCE((SELECT d.online FROM devices d WHERE d.device = r.device), 0) AS online, "
            "  l.pid, l.loss AS last_loss, l.source AS energy_source, l.kind AS energy_kind, "
            "  l.hz AS energy_hz, l.idle_w, "
            f"  (SELECT {LEAST_TRUSTED} FROM reports WHERE device = r.device) AS joules_kind "
            "FROM reports r JOIN reports l ON l.device = r.device "
            "  AND l.round = (SELECT MAX(m.round) FROM reports m WHERE m.device = r.device) "
            "GROUP BY r.device ORDER BY r.device"
        ).fetchall()
        phases = self._phases()
        return tuple(
            DeviceRecord(**{**dict(row), "online": bool(row["online"]), "phases": phases.get(row["id"], {})})
            for row in rows
        )

    def device_settings(self) -> dict[str, DeviceSettings]:
        """What devices said of their machines and limits, by name."""
        rows = self._db.execute("SELECT device, settings FROM device_settings")
        return {row["device"]: _SETTINGS_DECODER.decode(row["settings"]) for row in rows}

    def members(self) -> tuple[MemberRecord, ...]:
        """Return every device that the run has heard of, ordered by name."""
        settings = self.device_settings()
        refusals: dict[str, list[RefusalRecord]] = {}
        for refusal in self.refusals():
            refusals.setdefault(refusal.device, []).append(refusal)
        evaluations, notes = self.last_evaluations(), self.last_data_notes()
        adjustments: dict[str, list[AdjustmentRecord]] = {}
        for adjustment in self.adjustments():
            adjustments.setdefault(adjustment.device, []).append(adjustment)
        rows = self._db.execute(
            "SELECT n.device, COALESCE(d.online, 0) AS online, COALESCE(d.unfit, '') AS unfit, "
            "  COALESCE(d.software, '') AS software, "
            "  COALESCE(d.samples, 0) AS samples, "
            "  COALESCE(d.quarantined_until, 0) AS quarantined_until, COALESCE(d.quarantine, '') AS quarantine, "
            "  COALESCE(d.alarm, '') AS alarm, d.model_round, d.predict_ms, "
            "  MAX(COALESCE(d.seen_at, 0), "
            "      COALESCE((SELECT MAX(accepted_at) FROM updates u WHERE u.device = n.device), 0), "
            "      COALESCE((SELECT MAX(at) FROM refusals f WHERE f.device = n.device), 0)) AS seen_at, "
            "  (SELECT MAX(round) FROM updates u WHERE u.device = n.device) AS last_round, "
            "  (SELECT COUNT(*) FROM updates u WHERE u.device = n.device) AS updates, "
            "  (SELECT COALESCE(SUM(seconds), 0.0) FROM phases p WHERE p.device = n.device) AS seconds, "
            "  (SELECT SUM(joules) FROM phases p WHERE p.device = n.device) AS joules, "
            "  (SELECT COALESCE(SUM(bytes_down), 0) FROM reports r WHERE r.device = n.device) AS bytes_down, "
            "  (SELECT COALESCE(SUM(bytes_up), 0) FROM reports r WHERE r.device = n.device) AS bytes_up, "
            f"  COALESCE((SELECT {LEAST_TRUSTED} FROM reports r WHERE r.device = n.device), 'none') "
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
                    "settings": settings.get(row["device"], DeviceSettings()),
                    "refusals": tuple(refusals.get(row["device"], ())),
                    "adjustments": tuple(adjustments.get(row["device"], ())),
                    "evaluated": evaluations.get(row["device"]),
                    "data": notes.get(row["device"]),
                }
            )
            for row in rows.fetchall()
        )

    def _phases(self) -> dict[str, dict[str, PhaseCost]]:
        """Return the total cost of each phase by device; joules are None if no round measured any."""
        rows = self._db.execute(
            "SELECT device, phase, SUM(seconds) AS seconds, SUM(joules) AS joules FROM phases "
            "GROUP BY device, phase ORDER BY device, MIN(rowid)"
        )
        costs: dict[str, dict[str, PhaseCost]] = {}
        for row in rows:
            costs.setdefault(row["device"], {})[row["phase"]] = PhaseCost(row["seconds"], row["joules"])
        return costs

    def phase_records(self) -> tuple[PhaseRecord, ...]:
        """Return the cost of every phase, ordered by round, device and phase."""
        rows = self._db.execute(
            "SELECT round, device, phase, seconds, joules, kind FROM phases ORDER BY round, device, rowid"
        )
        return tuple(PhaseRecord(**dict(row)) for row in rows)

    def opened_at(self) -> dict[int, float]:
        """When each round was announced."""
        return {row["round"]: row["opened_at"] for row in self._db.execute("SELECT round, opened_at FROM rounds")}

    def device_evaluations(
        self, *, round_number: int | None = None, evaluation: int | None = None
    ) -> tuple[DeviceEvaluation, ...]:
        """What devices found in one training round, in one evaluation round, or in all; by round and device."""
        condition, values = "1", tuple[int, ...]()
        if evaluation is not None:
            condition, values = "evaluation = ?", (evaluation,)
        elif round_number is not None:
            condition, values = "evaluation = 0 AND round = ?", (round_number,)
        rows = self._db.execute(
            f"SELECT * FROM device_evaluations WHERE {condition} ORDER BY round, evaluation, device", values
        )
        return tuple(evaluation_of(row) for row in rows)

    def last_evaluations(self) -> dict[str, DeviceEvaluation]:
        """What each device found last, by device."""
        rows = self._db.execute("SELECT e.*, MAX(e.at) FROM device_evaluations e GROUP BY e.device ORDER BY e.device")
        return {row["device"]: evaluation_of(row) for row in rows}

    def evaluation_rounds(self) -> tuple[EvaluationRound, ...]:
        """The evaluation rounds in order; the last one may be under way."""
        rows = self._db.execute("SELECT * FROM evaluations ORDER BY number")
        return tuple(EvaluationRound(**{**dict(row), "figures": json.loads(row["figures"])}) for row in rows)

    def evaluation_figures(self) -> dict[int, dict[str, float]]:
        """What the evaluations on devices came to, by training round; rounds without any are left out."""
        figures: dict[int, dict[str, float]] = {}
        rows = self._db.execute(
            "SELECT round, name, value FROM metrics WHERE name GLOB 'eval_*' AND value IS NOT NULL ORDER BY round"
        )
        for row in rows:
            figures.setdefault(row["round"], {})[row["name"]] = row["value"]
        return figures

    def data_notes(self) -> tuple[DataRecord, ...]:
        """How the data of devices has changed, as far as they said so; by round and device."""
        rows = self._db.execute("SELECT * FROM data_notes ORDER BY round, device")
        return tuple(DataRecord(**dict(row)) for row in rows)

    def last_data_notes(self) -> dict[str, DataRecord]:
        """What each device said last about its data, by device."""
        rows = self._db.execute("SELECT d.*, MAX(d.at) FROM data_notes d GROUP BY d.device ORDER BY d.device")
        return {row["device"]: DataRecord(**{name: row[name] for name in DATA_COLUMNS}) for row in rows}

    def refusals(self) -> tuple[RefusalRecord, ...]:
        """Return all refusals, ordered by round."""
        rows = self._db.execute("SELECT round, device, kind, reason, count FROM refusals ORDER BY round, device, kind")
        return tuple(RefusalRecord(**dict(row)) for row in rows)

    def adjustments(self) -> tuple[AdjustmentRecord, ...]:
        """Return the updates that counted for less than their devices claimed, ordered by round."""
        rows = self._db.execute("SELECT * FROM adjustments ORDER BY round, device")
        return tuple(AdjustmentRecord(**{**dict(row), "cut": bool(row["cut"])}) for row in rows)

    def adjusted_devices(self) -> frozenset[str]:
        """Return the devices that ever had a notable adjustment."""
        return frozenset(adjustment.device for adjustment in self.adjustments() if adjustment.notable)

    def summary(self) -> RunSummary:
        """Return all of the run's records together."""
        return RunSummary(
            run=self.run(),
            run_dir=str(self._path.parent.resolve()),
            rounds=self.rounds(),
            devices=self.devices(),
            refusals=self.refusals(),
            stretches=self.stretches(),
            on_devices=self.evaluation_figures(),
            evaluations=self.evaluation_rounds(),
        )


def evaluation_of(row: sqlite3.Row) -> DeviceEvaluation:
    """Read a row of the table device_evaluations."""
    values = {name: row[name] for name in EVALUATION_COLUMNS}
    return DeviceEvaluation(**{**values, "held_out": bool(row["held_out"])})
