"""Losses and sparsity over rounds as the paper plots them: three panels for each group of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsyedge.benchmarks.paper.experiments import Row
from sparsyedge.benchmarks.report.style import run_looks

__all__ = ["draw_curves"]

PANELS = {
    "loss_devices": "training loss, devices",
    "test_loss": "test loss, global model",
    "sparsity_prunable": "sparsity, global model",
}
"""Figures of a round, and what they are called in the plot."""
WIDTH_IN = 7.0
PANEL_HEIGHT_IN = 1.9
LEGEND_HEIGHT_IN = 0.5

Results = Sequence[tuple[Row, Sequence[dict[str, Any]]]]


def draw_curves(results: Results) -> Figure:
    """Every row as a line, the mean over its seeds."""
    groups: dict[str, list[tuple[Row, Sequence[dict[str, Any]]]]] = {}
    for row, documents in results:
        groups.setdefault(row.panels, []).append((row, documents))
    figure = Figure(figsize=(WIDTH_IN, LEGEND_HEIGHT_IN + PANEL_HEIGHT_IN * len(groups)))
    grid = figure.subplots(len(groups), len(PANELS), sharex=True, squeeze=False)
    for line, (name, rows) in zip(grid, groups.items(), strict=True):
        _draw(line, rows)
        line[0].set_ylabel(name)
    for axes, title in zip(grid[0], PANELS.values(), strict=True):
        axes.set_title(title, fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)))
    return figure


def _draw(line: Sequence[Axes], rows: Results) -> None:
    for (row, documents), look in zip(rows, run_looks(len(rows)), strict=True):
        label = row.label.removesuffix(f", {row.panels}")
        for axes, name in zip(line, PANELS, strict=True):
            points = _mean(documents, name)
            axes.plot(list(points), list(points.values()), label=label, markevery=max(1, len(points) // 8), **look)


def _mean(documents: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    """By round, over the seeds; only rounds that all seeds have."""
    values: dict[int, list[float]] = {}
    for document in documents:
        for record in document["rounds"]:
            if record.get(name) is not None:
                values.setdefault(record["round"], []).append(record[name])
    return {number: sum(each) / len(each) for number, each in values.items() if len(each) == len(documents)}
