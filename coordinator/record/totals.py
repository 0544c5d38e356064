"""Sums over a run's rounds, kept up to date at the price of its last rounds alone.

A page or a metrics server asks every few seconds, and a run of ten thousand devices adds fifty thousand rows a round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.phase_costs import Phase

__all__ = ["OTHER_PHASE", "DeviceState", "DeviceTotals", "KeptTotals", "RunTotals", "TotalsReader"]

OTHER_PHASE = "other"
"""Stands for every phase that this version does not know: each would be one more series for ever."""
LATE_ROUNDS = 2
"""Rounds after which we count on no more reports for a closed round."""
MAX_PHASE_S = 7 * 86_400.0
MAX_PHASE_J = 1e9
MAX_BYTES = 1 << 40
"""What one round of a device counts for at most: it may claim anything, and sums must stay finite."""

_PHASE = f"iif(phase IN ({', '.join(repr(name) for name in get_args(Phase))}), phase, '{OTHER_PHASE}')"


@dataclass
class DeviceTotals:
    """What one device did and cost over the rounds; phases by name."""

    updates: int = 0
    refusals: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    joules: dict[str, float] = field(default_factory=dict)
    """Only of phases whose joules somebody measured or modelled."""
    joules_by_kind: dict[str, float] = field(default_factory=dict)
    """The same joules by how they are known: measured, calibrated, modelled."""
    updated_at: float = 0.0
    """When its last update was accepted, in Unix seconds; 0 for none."""

    def add(self, other: DeviceTotals) -> None:
        """Add what another stretch of rounds came to."""
        self.updates += other.updates
        self.refusals += other.refusals
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up
        pairs = (
            (self.seconds, other.seconds),
            (self.joules, other.joules),
            (self.joules_by_kind, other.joules_by_kind),
        )
        for mine, theirs in pairs:
            for phase, value in theirs.items():
                mine[phase] = mine.get(phase, 0.0) + value
        self.updated_at = max(self.updated_at, other.updated_at)


@dataclass
class RunTotals:
    """Sums over rounds: of the fleet, by device, and the refusals by kind."""

    fleet: DeviceTotals = field(default_factory=DeviceTotals)
    devices: dict[str, DeviceTotals] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)

    def of(self, device: str) -> DeviceTotals:
        """The totals of a device, which may be changed."""
        return self.devices.setdefault(device, DeviceTotals())

    def add(self, other: RunTotals) -> None:
        """Add what another stretch of rounds came to."""
        self.fleet.add(other.fleet)
        for device, totals in other.devices.items():
            self.of(device).add(totals)
        for kind, count in other.refusals.items():
            self.refusals[kind] = self.refusals.get(kind, 0) + count


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """How a device stands with the run."""

    device: str
    online: bool
    software: str
    unfit: bool
    quarantined_until: int
    seen_at: float


class TotalsReader(Store):
    """Reads a run's store in stretches of rounds."""

    def closed_through(self) -> int:
        """The last closed round; 0 if none is."""
        row = self._db.execute("SELECT MAX(round) FROM rounds WHERE closed_at IS NOT NULL").fetchone()
        return row[0] or 0

    def settled_through(self) -> int:
        """The last round whose sums do not change any more."""
        return max(0, self.closed_through() - LATE_ROUNDS)

    def round_seconds(self) -> tuple[int, float]:
        """How many rounds are closed, and how many seconds they took together."""
        row = self._db.execute(
            "SELECT COUNT(*), COALESCE(SUM(seconds), 0.0) FROM rounds WHERE closed_at IS NOT NULL"
        ).fetchone()
        return row[0], row[1]

    def closed_at(self, round_number: int) -> float:
        """When a round was closed, in Unix seconds."""
        row = self._db.execute("SELECT closed_at FROM rounds WHERE round = ?", (round_number,)).fetchone()
        closed_at: float = row[0]
        return closed_at

    def device_states(self) -> tuple[DeviceState, ...]:
        """Every device that came online, those first heard of first: whoever joins later changes no order."""
        rows = self._db.execute(
            "SELECT device, online, software, unfit <> '' AS unfit, quarantined_until, seen_at FROM devices "
            "ORDER BY rowid"
        )
        return tuple(
            DeviceState(**{**dict(row), "online": bool(row["online"]), "unfit": bool(row["unfit"])}) for row in rows
        )

    def totals(self, *, after: int, through: int | None = None) -> RunTotals:
        """Sum the rounds after one, up to and with another; without that, all that there are."""
        bounds = (after, through if through is not None else 1 << 62)
        found = RunTotals()
        where = "WHERE round > ? AND round <= ?"
        for row in self._db.execute(
            f"SELECT device, COUNT(*) AS updates, MAX(accepted_at) AS updated_at FROM updates {where} GROUP BY device",
            bounds,
        ):
            mine = found.of(row["device"])
            mine.updates, mine.updated_at = row["updates"], row["updated_at"]
        for row in self._db.execute(
            f"SELECT device, SUM(MIN(bytes_down, {MAX_BYTES})) AS down, SUM(MIN(bytes_up, {MAX_BYTES})) AS up "
            f"FROM reports {where} GROUP BY device",
            bounds,
        ):
            mine = found.of(row["device"])
            mine.bytes_down, mine.bytes_up = row["down"], row["up"]
        self._add_phases(found, where, bounds)
        for row in self._db.execute(
            f"SELECT device, kind, SUM(count) AS count FROM refusals {where} GROUP BY device, kind", bounds
        ):
            found.of(row["device"]).refusals += row["count"]
            found.refusals[row["kind"]] = found.refusals.get(row["kind"], 0) + row["count"]
        for each in found.devices.values():
            found.fleet.add(each)
        return found

    def _add_phases(self, found: RunTotals, where: str, bounds: tuple[int, int]) -> None:
        rows = self._db.execute(
            f"SELECT device, {_PHASE} AS known, SUM(MIN(seconds, {MAX_PHASE_S})) AS seconds, "
            f"SUM(MIN(joules, {MAX_PHASE_J})) AS joules FROM phases {where} GROUP BY device, known",
            bounds,
        )
        for row in rows:
            mine = found.of(row["device"])
            mine.seconds[row["known"]] = row["seconds"]
            if row["joules"] is not None:
                mine.joules[row["known"]] = row["joules"]
        kinds = self._db.execute(
            f"SELECT device, kind, SUM(MIN(joules, {MAX_PHASE_J})) AS joules FROM phases {where} "
            "AND joules IS NOT NULL GROUP BY device, kind",
            bounds,
        )
        for row in kinds:
            found.of(row["device"]).joules_by_kind[row["kind"]] = row["joules"]


class KeptTotals:
    """The totals of one run, whose settled rounds are read only once."""

    def __init__(self) -> None:
        self._run: tuple[str, float] | None = None
        self._through = 0
        self._settled = RunTotals()

    def read(self, reader: TotalsReader) -> tuple[RunTotals, RunTotals]:
        """Return what the settled rounds came to, and the rounds since; the caller changes neither.

        A report that comes more than `LATE_ROUNDS` after its round counts only in a new `KeptTotals`.
        """
        run = reader.run()
        if self._run != (run.name, run.created_at):
            # Somebody has made another run in the same folder.
            self._run, self._through, self._settled = (run.name, run.created_at), 0, RunTotals()
        through = reader.settled_through()
        if through > self._through:
            self._settled.add(reader.totals(after=self._through, through=through))
            self._through = through
        return self._settled, reader.totals(after=self._through)
