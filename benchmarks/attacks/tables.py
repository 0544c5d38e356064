"""The results of `sparsyedge bench attacks` side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.attacks.result import NO_ATTACK, UNGUARDED, Result

__all__ = ["print_table", "summary_of"]


def summary_of(results: Sequence[Result]) -> dict[str, Any]:
    """The accuracies over the seeds in percent, per rule and attack."""
    cells = _cells(results)
    return {
        "rules": {
            rule: {
                attack: {"mean": statistics.mean(values), "lowest": min(values), "runs": values}
                for (of_rule, attack), values in cells.items()
                if of_rule == rule
            }
            for rule in dict.fromkeys(result.rule for result in results)
        }
    }


def print_table(console: Console, results: Sequence[Result]) -> None:
    """Means over the seeds; the last columns are the points lost without an attack and under the worst one."""
    attacks = list(dict.fromkeys(result.attack for result in results))
    rules = list(dict.fromkeys(result.rule for result in results))
    cells = _cells(results)
    # Always compare with the same row: the best of several rules would just be the luckiest.
    start = next(
        (statistics.mean(cells[rule, NO_ATTACK]) for rule in (UNGUARDED, *rules) if (rule, NO_ATTACK) in cells), None
    )
    table = Table(title="test accuracy in % by rule and attack", title_justify="left", box=box.SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column("rule", no_wrap=True)
    for heading in (*attacks, "lost clean", "at worst"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rule in rules:
        means = {attack: statistics.mean(cells[rule, attack]) for attack in attacks if (rule, attack) in cells}
        lost = (
            [f"{start - means[NO_ATTACK]:.1f}", f"{start - min(means.values()):.1f}"]
            if start is not None
            else ["-", "-"]
        )
        table.add_row(rule, *(f"{means[attack]:.1f}" if attack in means else "-" for attack in attacks), *lost)
    console.print(table)
    seeds = len({result.seed for result in results})
    settings = results[0].settings
    console.print(
        f"{settings.hostile} of {settings.devices} devices hostile, {settings.rounds} rounds, width {settings.width}; "
        f"means over {seeds} seeds; lost: points below {UNGUARDED} (or the first rule) without an attack",
        highlight=False,
    )


def _cells(results: Sequence[Result]) -> dict[tuple[str, str], list[float]]:
    cells: dict[tuple[str, str], list[float]] = {}
    for result in results:
        cells.setdefault((result.rule, result.attack), []).append(round(100 * result.test_accuracy, 2))
    return cells
