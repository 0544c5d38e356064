"""What the live page asks of run.sqlite: only what changed, by index, so that looking twice a second costs little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation
from sparsyedge.coordinator.record.energy_kinds import LEAST_TRUSTED, least_trusted
from sparsyedge.coordinator.record.metrics import LAYER_PREFIX
from sparsyedge.coordinator.record.records import DataRecord, RoundRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.record.store_reader import evaluation_of
from sparsyedge.edge.protocol.device_settings import DeviceSettings

__all__ = ["DeviceTotals", "PageStore", "PresentDevice", "Refused", "RoundCost"]

Row = dict[str, Any]


class PresentDevice(NamedTuple):
    """What a device said last of itself, and what the coordinator thinks of it."""

    online: int = 0
    samples: int = 0
    software: str = ""
    unfit: str = ""
    quarantined_until: int = 0
    quarantine: str = ""
    alarm: str = ""
    seen_at: float = 0.0
    model_round: int | None = None
    predict_ms: float | None = None
    upgrade: str = ""
    upgrade_reason: str = ""


class Refused(NamedTuple):
    """What was refused from a device, all in all and last."""

    times: int
    at: float
    round: int
    reason: str


class DeviceTotals(NamedTuple):
    """What a device did and cost over a stretch of rounds."""

    updates: int = 0
    last_round: int = 0
    """The last round that it delivered an update for; 0 if there was none."""
    accepted_at: float = 0.0
    seconds: float = 0.0
    joules: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    energy_kind: str = "none"

    def plus(self, later: DeviceTotals) -> DeviceTotals:
        """Return the totals of both stretches; `later` is the later one."""
        measured = [each for each in (self.joules, later.joules) if each is not None]
        return DeviceTotals(
            updates=self.updates + later.updates,
            last_round=max(self.last_round, later.last_round),
            accepted_at=max(self.accepted_at, later.accepted_at),
            seconds=self.seconds + later.seconds,
            joules=sum(measured) if measured else None,
            bytes_up=self.bytes_up + later.bytes_up,
            bytes_down=self.bytes_down + later.bytes_down,
            energy_kind=least_trusted(self.energy_kind, later.energy_kind),
        )


@dataclass(frozen=True)
class RoundCost:
    """Seconds and joules of all devices in one round."""

    seconds: float
    joules: float | None
    kind: str
    """How the joules were measured; the least trusted of the kinds, if devices differ."""


class PageStore(Store):
    """A run's store with the questions of the live page. No query goes through all rounds more than once."""

    def version(self) -> int:
        """Return a number that changes when another process writes; costs next to nothing."""
        number: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return number

    def rounds_from(self, first: int) -> tuple[RoundRecord, ...]:
        """Return the closed rounds from `first` on, in order."""
        return self._rounds("r.round >= ?", first)

    def round_costs(self, first: int) -> dict[int, RoundCost]:
        """Return what the rounds from `first` on cost the devices, by round."""
        rows = self._db.execute(
            f"SELECT round, SUM(seconds) AS seconds, SUM(joules) AS joules, {LEAST_TRUSTED} AS kind FROM phases "
            "WHERE round >= ? GROUP BY round",
            (first,),
        )
        return {row["round"]: RoundCost(row["seconds"], row["joules"], row["kind"]) for row in rows}

    def present_devices(self) -> dict[str, PresentDevice]:
        """Return every device that came online at least once: what it said last."""
        rows = self._db.execute(
            "SELECT device, online, samples, software, unfit, quarantined_until, quarantine, alarm, seen_at, "
            "model_round, predict_ms, upgrade, upgrade_reason FROM devices ORDER BY device"
        )
        return {device: PresentDevice(*values) for device, *values in rows}

    def totals(self, first: int, last: int) -> dict[str, DeviceTotals]:
        """Return what each device did and cost in these rounds, both included."""
        bounds = (first, last)
        updates = self._db.execute(
            "SELECT device, COUNT(*), MAX(round), MAX(accepted_at) FROM updates WHERE round BETWEEN ? AND ? "
            "GROUP BY device",
            bounds,
        )
        reports = self._db.execute(
            f"SELECT device, SUM(bytes_up), SUM(bytes_down), {LEAST_TRUSTED} FROM reports "
            "WHERE round BETWEEN ? AND ? GROUP BY device",
            bounds,
        )
        phases = self._db.execute(
            "SELECT device, SUM(seconds), SUM(joules) FROM phases WHERE round BETWEEN ? AND ? GROUP BY device", bounds
        )
        costs = {device: cost for device, *cost in phases}
        moved = {device: sums for device, *sums in reports}
        return {
            device: DeviceTotals(*counts, *costs.get(device, (0.0, None)), *moved.get(device, (0, 0, "none")))
            for device, *counts in updates
        }

    def figures_on_devices(self, first: int) -> dict[int, dict[str, float]]:
        """Return what evaluations on devices came to in the rounds from `first` on, by round and name."""
        figures: dict[int, dict[str, float]] = {}
        rows = self._db.execute(
            "SELECT round, name, value FROM metrics WHERE round >= ? AND name GLOB 'eval_*' AND value IS NOT NULL",
            (first,),
        )
        for row in rows:
            figures.setdefault(row["round"], {})[row["name"]] = row["value"]
        return figures

    def evaluations_since(self, position: int) -> tuple[int, list[DeviceEvaluation]]:
        """Return what devices found since an earlier call, in order, and the position for the next call; begin at 0."""
        # A row that is written again gets the highest number anew, perhaps the one that it had: so the last one, too.
        rows = self._db.execute(
            "SELECT rowid AS position, * FROM device_evaluations WHERE rowid >= ? ORDER BY rowid", (position,)
        ).fetchall()
        return (rows[-1]["position"] if rows else position), [evaluation_of(row) for row in rows]

    def evaluations_of(self, device: str) -> list[Row]:
        """Return what a device found in the last evaluation rounds, the latest first."""
        rows = self._db.execute(
            "SELECT evaluation, round, samples, loss, accuracy FROM device_evaluations "
            "WHERE evaluation > 0 AND device = ? ORDER BY evaluation DESC LIMIT 100",
            (device,),
        )
        return [dict(row) for row in rows]

    def data_notes_of(self, device: str) -> list[DataRecord]:
        """Return what a device said of its data in the last rounds that it said anything, the latest first."""
        rows = self._db.execute(
            "SELECT * FROM data_notes WHERE device = ? ORDER BY round DESC LIMIT 20", (device,)
        ).fetchall()
        return [DataRecord(**dict(row)) for row in rows]

    def settings_of(self, device: str) -> DeviceSettings:
        """Return what a device says of its machine and its owner's limits."""
        row = self._db.execute("SELECT settings FROM device_settings WHERE device = ?", (device,)).fetchone()
        return DeviceSettings() if row is None else msgspec.json.decode(row["settings"], type=DeviceSettings)

    def refusals_by_device(self) -> dict[str, Refused]:
        """Return how often each device was refused, and the round and reason of the last time."""
        rows = self._db.execute("SELECT device, SUM(count), MAX(at), round, reason FROM refusals GROUP BY device")
        return {device: Refused(*values) for device, *values in rows}

    def refusals_of(self, device: str) -> list[Row]:
        """Return a device's refusals, the latest first."""
        rows = self._db.execute(
            "SELECT round, kind, reason, count, at FROM refusals WHERE device = ? ORDER BY at DESC LIMIT 100",
            (device,),
        )
        return [dict(row) for row in rows]

    def layers(self) -> tuple[int, dict[str, float]]:
        """Return the last closed round with figures, and the sparsity of each layer after it."""
        row = self._db.execute(
            "SELECT MAX(round) AS round FROM metrics WHERE name >= ? AND name < ?", _named(LAYER_PREFIX)
        ).fetchone()
        if row["round"] is None:
            return 0, {}
        found = self._db.execute(
            "SELECT name, value FROM metrics WHERE round = ? AND name >= ? AND name < ? ORDER BY rowid",
            (row["round"], *_named(LAYER_PREFIX)),
        )
        return row["round"], {each["name"].removeprefix(LAYER_PREFIX): each["value"] for each in found}

    def layer_history(self, every: int) -> dict[str, dict[int, float]]:
        """Return the sparsity of each layer after every so many rounds and the last, by layer and round."""
        history: dict[str, dict[int, float]] = {}
        for row in self._db.execute(
            "SELECT round, name, value FROM metrics WHERE name >= ? AND name < ? "
            "AND (round % ? = 0 OR round = (SELECT MAX(round) FROM metrics)) ORDER BY round, rowid",
            (*_named(LAYER_PREFIX), every),
        ):
            history.setdefault(row["name"].removeprefix(LAYER_PREFIX), {})[row["round"]] = row["value"]
        return history

    def history(self, device: str, last_rounds: int) -> list[Row]:
        """Return what a device did in each of the last rounds that it took part in, in order."""
        # From rounds to reports: the keys of the other tables begin with the round.
        rows = self._db.execute(
            "SELECT r.round, u.accepted_at - r.opened_at AS answered_s, u.samples, u.bytes, p.steps, p.loss, "
            "  p.peak_rss_mb, p.bytes_down, p.bytes_up, p.source, p.kind, "
            "  e.loss AS given_loss, e.accuracy AS given_accuracy, e.own_loss, e.own_accuracy, "
            "  (SELECT a.clipped FROM adjustments a WHERE a.round = r.round AND a.device = u.device) AS clipped "
            "FROM rounds r JOIN updates u ON u.round = r.round AND u.device = ? "
            "LEFT JOIN reports p ON p.round = r.round AND p.device = u.device "
            "LEFT JOIN device_evaluations e ON e.evaluation = 0 AND e.round = r.round AND e.device = u.device "
            "ORDER BY r.round DESC LIMIT ?",
            (device, last_rounds),
        )
        history = [dict(row) for row in rows.fetchall()]
        for entry in history:
            phases = self._db.execute(
                "SELECT phase, seconds, joules FROM phases WHERE round = ? AND device = ? ORDER BY rowid",
                (entry["round"], device),
            )
            entry["phases"] = {row["phase"]: [row["seconds"], row["joules"]] for row in phases}
        return history[::-1]

    def knows(self, device: str) -> bool:
        """Return whether the run has heard of a device."""
        for table in ("devices", "refusals"):
            if self._db.execute(f"SELECT 1 FROM {table} WHERE device = ? LIMIT 1", (device,)).fetchone():
                return True
        return False


def _named(prefix: str) -> tuple[str, str]:
    """The bounds of names that begin so."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
