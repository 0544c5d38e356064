"""The result of `bench device --suite` as one JSON document; its power fields follow MLPerf's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from sparsyedge.benchmarks.device.measurement import Turn
from sparsyedge.benchmarks.device.room import Need
from sparsyedge.benchmarks.device.soak import SoakSample
from sparsyedge.edge.device.energy import above_idle
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind

__all__ = ["FORMAT", "Cost", "Power", "Row", "Soak", "Spread", "SuiteResult", "cost_of", "is_suite", "read_suite"]

FORMAT = "sparsyedge-bench-suite-1"
Outcome = Literal["measured", "skipped", "ended"]
"""`skipped`: there was no room, nothing was started. `ended`: its process did not finish."""
TENTH = 10


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Several measurements of one thing."""

    count: int
    mean: float
    deviation: float
    """The sample standard deviation; 0 of a single one."""
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one or more values."""
        return cls(
            count=len(values),
            mean=statistics.fmean(values),
            deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
            median=statistics.median(values),
            low=min(values),
            high=max(values),
        )


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """How the joules were found, and the power while training."""

    method: Kind
    source: str
    sampling_hz: float
    """Readings of the sensor per second; 0 for a meter that counts energy itself."""
    stabilisation_s: float
    """Training before the first step that counts."""
    duration_s: float
    """Of the measured training."""
    idle_s: float
    idle_w: float | None
    """Mean power while the process slept, before it loaded the model."""
    watts: Spread | None
    """Mean power between two looks, a second or more apart; None without a meter or in a run of less than that."""
    meter_overhead: float
    """The share of one core that reading the sensor took."""


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """Heat over the whole training."""

    start_c: float | None
    peak_c: float | None
    end_c: float | None
    throttled_before: bool | None
    """Since the board started, before the workload; then `throttled` says nothing new."""
    throttled: bool | None
    slower_at_end: float | None
    """The last tenth's median batch over the first tenth's; None for fewer than twenty batches."""
    samples: list[SoakSample]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one workload took."""

    graph: str
    batch_s: Spread
    samples_per_s: float
    sample_j: float | None
    """Idle power included."""
    sample_j_above_idle: float | None
    peak_rss_mb: float
    round_bytes: dict[str, int]
    """Of one update by codec, and as float32; the model of a round travels down in about as many."""
    power: Power
    soak: Soak


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of the suite."""

    workload: str
    network: str
    pixels: int
    train: str
    method: str
    sparsity: float
    batch: int
    outcome: Outcome
    reason: str
    """Why it was skipped or how it ended; empty if it was measured."""
    need: Need
    available_mb: float | None
    """Memory before it was started."""
    cost: Cost | None
    load: float
    """The machine's load average when the workload was over."""


class _Header(msgspec.Struct, frozen=True):
    """What every result of `bench device` begins with."""

    format: str = ""


class SuiteResult(msgspec.Struct, frozen=True, kw_only=True):
    """One board and one suite."""

    format: str
    suite: str
    made_at: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row]
    notes: list[str]

    @property
    def name(self) -> str:
        """A short name for the board."""
        board = str(self.machine["board"])
        return str(self.machine["cpu"]) if board == "unknown" else board


def cost_of(turn: Turn, *, idle_s: float) -> Cost:
    """The figures of one workload's only turn."""
    train = turn.phases["train"]
    net = above_idle(train, turn.idle_w)
    return Cost(
        graph=turn.graph,
        batch_s=Spread.of(turn.step_s),
        samples_per_s=turn.samples / sum(turn.step_s),
        sample_j=None if train.joules is None else train.joules / turn.samples,
        sample_j_above_idle=None if net is None else net / turn.samples,
        peak_rss_mb=turn.peak_rss_mb,
        round_bytes=turn.round_bytes,
        power=Power(
            method=turn.energy_kind,
            source=turn.energy_source,
            sampling_hz=turn.energy_hz,
            stabilisation_s=turn.warm_up_s,
            duration_s=train.seconds,
            idle_s=idle_s,
            idle_w=turn.idle_w,
            watts=_watts(turn.soak),
            meter_overhead=turn.meter_overhead,
        ),
        soak=_soak(turn),
    )


def _watts(samples: Sequence[SoakSample]) -> Spread | None:
    found = [
        (after.joules - before.joules) / (after.at_s - before.at_s)
        for before, after in pairwise(samples)
        if before.joules is not None and after.joules is not None and after.at_s > before.at_s
    ]
    return Spread.of(found) if found else None


def _soak(turn: Turn) -> Soak:
    celsius = [sample.celsius for sample in turn.soak if sample.celsius is not None]
    tenth = len(turn.step_s) // TENTH
    slower = None
    if tenth >= 2:
        slower = statistics.median(turn.step_s[-tenth:]) / statistics.median(turn.step_s[:tenth])
    return Soak(
        start_c=turn.start_c,
        peak_c=turn.peak_c,
        end_c=celsius[-1] if celsius else None,
        throttled_before=turn.throttled_before,
        throttled=turn.throttled,
        slower_at_end=slower,
        samples=turn.soak,
    )


def is_suite(path: Path) -> bool:
    """Whether a file says that it is a suite's result; False for any other, readable or not."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Header).format == FORMAT
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def read_suite(path: Path) -> SuiteResult:
    """Read the document of an earlier run; raises ConfigError for any other file."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=SuiteResult)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give a suite.json of `bench device`") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a result of `sparsyedge bench device --suite`: {error}") from error
    if result.format != FORMAT:
        raise ConfigError(f"{path} has format {result.format!r}, allowed is {FORMAT!r}; measure that board again")
    return result
