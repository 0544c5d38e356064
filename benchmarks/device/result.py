"""The result of `bench device` as one JSON document, and the figures derived from it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.benchmarks.device.measurement import Turn
from sparsyedge.edge.device.energy import above_idle
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind

__all__ = ["DeviceResult", "Model", "read_result", "summarise"]

FORMAT = "sparsyedge-bench-device-1"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one of the two models; energy is None without a meter."""

    graph: str
    sparsity: float
    steps: int
    step_ms: float
    """Median over all steps."""
    step_ms_p10: float
    step_ms_p90: float
    samples_per_s: float
    sample_j: float | None
    """Joules per sample, idle power included."""
    sample_j_above_idle: float | None
    round_s: float
    """A round of `round_samples`: training, pruning and encoding."""
    round_j: float | None
    round_j_above_idle: float | None
    update_bytes: int
    peak_rss_mb: float
    start_c: float | None
    peak_c: float | None
    throttled: bool | None


class DeviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One board, dense against sparse."""

    format: str
    made_at: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    energy_source: str
    energy_kind: Kind
    energy_hz: float
    idle_w: float | None
    meter_overhead: float
    models: dict[str, Model]
    notes: list[str]

    @property
    def name(self) -> str:
        """A short name for the board, for tables and plots."""
        board = str(self.machine["board"])
        return str(self.machine["cpu"]) if board == "unknown" else board


def summarise(turns: list[Turn], *, sparsity: float, round_samples: int) -> Model:
    """The figures of one model, computed from its turns."""
    step_s = sorted(second for turn in turns for second in turn.step_s)
    deciles = statistics.quantiles(step_s, n=10) if len(step_s) > 1 else [step_s[0]] * 9
    samples = sum(turn.samples for turn in turns)
    train_s = sum(turn.phases["train"].seconds for turn in turns)
    last = turns[-1]
    finish = [last.phases[name] for name in ("prune", "encode") if name in last.phases]
    gross = _total([turn.phases["train"].joules for turn in turns])
    net = _total([above_idle(turn.phases["train"], turn.idle_w) for turn in turns])
    rest, rest_net = (
        _total([cost.joules for cost in finish]),
        _total([above_idle(cost, last.idle_w) for cost in finish]),
    )
    temperatures = [turn.peak_c for turn in turns if turn.peak_c is not None]
    throttled = [turn.throttled for turn in turns if turn.throttled is not None]
    return Model(
        graph=last.graph,
        sparsity=sparsity,
        steps=len(step_s),
        step_ms=1e3 * statistics.median(step_s),
        step_ms_p10=1e3 * deciles[0],
        step_ms_p90=1e3 * deciles[-1],
        samples_per_s=samples / train_s,
        sample_j=None if gross is None else gross / samples,
        sample_j_above_idle=None if net is None else net / samples,
        round_s=round_samples * train_s / samples + sum(cost.seconds for cost in finish),
        round_j=None if gross is None or rest is None else gross / samples * round_samples + rest,
        round_j_above_idle=None if net is None or rest_net is None else net / samples * round_samples + rest_net,
        update_bytes=last.update_bytes,
        peak_rss_mb=max(turn.peak_rss_mb for turn in turns),
        start_c=turns[0].start_c,
        peak_c=max(temperatures, default=None),
        throttled=any(throttled) if throttled else None,
    )


def read_result(path: Path) -> DeviceResult:
    """Read the JSON of an earlier run; raises ConfigError for any other file."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=DeviceResult)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give a JSON file of `bench device`") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a result of `sparsyedge bench device`: {error}") from error
    if result.format != FORMAT:
        raise ConfigError(f"{path} has format {result.format!r}, allowed is {FORMAT!r}; measure that board again")
    return result


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
