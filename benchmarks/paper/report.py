"""An experiment's results as a table: ours beside the paper's, with seeds and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.paper.experiments import Experiment, Row

__all__ = ["as_document", "interval", "print_experiment"]

# Student's t for 95 %, by degrees of freedom; runs have few seeds.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
PERCENT = ("accuracy", "late_accuracy", "best_accuracy", "sparsity")

Results = Sequence[tuple[Row, Sequence[dict[str, Any]]]]


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % interval over seeds; None where there is one value only."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return mean, T95.get(len(values) - 1, 1.96) * deviation / math.sqrt(len(values))


def print_experiment(console: Console, experiment: Experiment, results: Results) -> None:
    """The table and what has to be known to read it."""
    table = Table(
        title=experiment.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("")
    for column in experiment.columns:
        table.add_column(column, justify="right")
    table.add_column("paper", justify="right")
    table.add_column("seeds", justify="right")
    for row, documents in results:
        cells = [
            _cell(column, [document["figures"].get(column) for document in documents]) for column in experiment.columns
        ]
        paper = ", ".join(f"{column} {value}" for column, value in row.paper.items())
        table.add_row(row.label, *cells, paper, str(len(documents)))
    console.print(table)
    if experiment.note:
        console.print(experiment.note, highlight=False)
    console.print("intervals are 95 % over seeds (Student's t); accuracies are in percent", highlight=False)


def as_document(name: str, experiment: Experiment, results: Results, *, scale: str) -> dict[str, Any]:
    """The same as one JSON document."""
    rows = []
    for row, documents in results:
        figures = {}
        for column in experiment.columns:
            values = [value for document in documents if (value := document["figures"].get(column)) is not None]
            mean, half_width = interval(values) if values else (None, None)
            figures[column] = {"mean": mean, "half_width_95": half_width, "values": values}
        rows.append(
            {"label": row.label, "figures": figures, "paper": row.paper, "settings": [d["setting"] for d in documents]}
        )
    return {"experiment": name, "title": experiment.title, "scale": scale, "note": experiment.note, "rows": rows}


def _cell(column: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    factor = 100 if column in PERCENT else 1
    mean, half_width = interval([factor * value for value in known])
    text = f"{mean:.2f}" if abs(mean) < 1000 else f"{mean:,.0f}"
    return text if half_width is None else f"{text} ± {half_width:.2f}"
