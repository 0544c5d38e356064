"""What several runs of `bench to-target` come to: means with intervals by method, and ratios in pairs of seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.common.paired import CONFIDENCE, Interval, mean_interval
from sparsyedge.benchmarks.to_target.result import RULE, Point, Result

__all__ = ["by_method", "print_table", "summary_of"]

FigureOf = Callable[[Point], float | None]
FIGURES: dict[str, FigureOf] = {
    "rounds": lambda cost: cost.round,
    "seconds": lambda cost: cost.seconds,
    "device_s": lambda cost: cost.device_s,
    "joules": lambda cost: cost.joules,
    "mb_down": lambda cost: cost.bytes_down / 1e6,
    "mb_up": lambda cost: cost.bytes_up / 1e6,
    "mb": lambda cost: (cost.bytes_down + cost.bytes_up) / 1e6,
}
COMPARED = {"mb": "MB", "joules": "J", "seconds": "s"}


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each method, in the order in which methods were named."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.method, []).append(result)
    return found


def interval_of(results: Sequence[Result], figure: str) -> Interval | None:
    """The mean over the runs that held the target; None if none did, or one lacks the figure."""
    values = [FIGURES[figure](result.cost) for result in results if result.cost is not None]
    known = [value for value in values if value is not None]
    return mean_interval(known) if known and len(known) == len(values) else None


def times_less(results: Sequence[Result], reference: Sequence[Result], figure: str) -> Interval | None:
    """How many times less than the reference, as the geometric mean over seeds in which both held the target."""
    theirs = {result.seed: FIGURES[figure](result.cost) for result in reference if result.cost is not None}
    ratios = []
    for result in results:
        ours, other = (FIGURES[figure](result.cost) if result.cost else None), theirs.get(result.seed)
        if ours and other:
            ratios.append(math.log(other / ours))
    if not ratios:
        return None
    log = mean_interval(ratios)
    high = math.exp(log.high) if math.isfinite(log.high) else math.inf
    return Interval(math.exp(log.mean), math.exp(log.low), high, log.count)


def summary_of(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of every method, for the JSON document."""
    groups = by_method(results)
    reference = next(iter(groups))
    methods = {}
    for name, runs in groups.items():
        figures: dict[str, Any] = {figure: _document(interval_of(runs, figure)) for figure in FIGURES}
        if name != reference:
            figures["times_less"] = {
                figure: _document(times_less(runs, groups[reference], figure)) for figure in COMPARED
            }
        held = [run.seed for run in runs if run.cost is not None]
        methods[name] = {"seeds": [run.seed for run in runs], "held": held, "best_accuracy": [r.best for r in runs]}
        methods[name] |= figures
    return {"rule": RULE, "reference": reference, "confidence": CONFIDENCE, "methods": methods}


def print_table(console: Console, results: Sequence[Result]) -> None:
    """Print a row for each method, the ratios to the first one, and what the figures are."""
    settings, groups = results[0].settings, by_method(results)
    kind = energy_text(results)
    table = Table(title=f"to {settings.target:.1%} on {settings.dataset}", title_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    for heading in ("method", "held", "rounds", "s", "J", "MB down", "MB up"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for name, runs in groups.items():
        held = sum(run.cost is not None for run in runs)
        figures = ("rounds", "seconds", "joules", "mb_down", "mb_up")
        table.add_row(name, f"{held} of {len(runs)}", *(_cell(interval_of(runs, figure)) for figure in figures))
    console.print(table)
    for line in [*_ratios(groups), *_failures(groups), f"J: {kind}", *_notes(results)]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def energy_text(results: Sequence[Result]) -> str:
    """Where the joules come from."""
    found = sorted({(result.energy_kind, result.energy_source) for result in results})
    if all(kind == "none" for kind, _ in found):
        return "no meter"
    return ", ".join(f"{kind} ({source})" for kind, source in found) + ", all devices' phases, not the coordinator's"


def _ratios(groups: dict[str, list[Result]]) -> list[str]:
    reference = next(iter(groups))
    lines = []
    for name in list(groups)[1:]:
        found = {unit: times_less(groups[name], groups[reference], figure) for figure, unit in COMPARED.items()}
        parts = [f"{_cell(ratio, pair=True)} {unit}" for unit, ratio in found.items() if ratio is not None]
        if parts:
            pairs = next(ratio.count for ratio in found.values() if ratio is not None)
            lines.append(f"{name}, times less than {reference} ({pairs} pairs): {', '.join(parts)}")
    return lines


def _failures(groups: dict[str, list[Result]]) -> list[str]:
    lines = []
    for name, runs in groups.items():
        without = [run for run in runs if run.cost is None]
        if without:
            seeds = ", ".join(str(run.seed) for run in without)
            best = max(run.best for run in without)
            rounds = without[0].settings.rounds
            lines.append(f"{name} never held it within {rounds} rounds (seed {seeds}): {best:.1%} at best")
    return lines


def _notes(results: Sequence[Result]) -> list[str]:
    busy = sum(bool(result.notes) for result in results)
    return [
        RULE,
        f"mean and {CONFIDENCE:.0%} interval over the seeds that held it; s: each round's slowest device, added up",
        *([f"WARNING: other work disturbed the seconds of {busy} of {len(results)} runs"] if busy else []),
    ]


def _cell(interval: Interval | None, *, pair: bool = False) -> str:
    if interval is None:
        return "-"
    digits = 0 if interval.mean >= 100 else 1 if interval.mean >= 10 else 2
    mean = f"{interval.mean:.{digits}f}"
    if interval.count < 2:
        return mean
    if pair:
        return f"{mean} ({interval.low:.{digits}f}..{interval.high:.{digits}f})"
    return f"{mean} ±{interval.half_width:.{digits}f}"


def _document(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    low, high = (interval.low, interval.high) if interval.count > 1 else (None, None)
    return {"mean": interval.mean, "low": low, "high": high, "count": interval.count}
