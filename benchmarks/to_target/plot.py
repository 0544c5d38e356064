"""Accuracy against megabytes and joules, a line for each run; a ring marks where a run held its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from sparsyedge.benchmarks.report.page import png_of, svg_of
from sparsyedge.benchmarks.report.plot import WIDTH_IN, Plot
from sparsyedge.benchmarks.report.style import figure_style, run_looks
from sparsyedge.benchmarks.to_target.result import Point, Result
from sparsyedge.benchmarks.to_target.tables import by_method

__all__ = ["draw"]

NAME = "to-target"


def draw(results: Sequence[Result]) -> dict[str, bytes]:
    """The picture as PNG and SVG, by file name."""
    with figure_style():
        plot = Plot(NAME, "Test accuracy against what it took to get there.", _figure(results))
        return {f"{NAME}.png": png_of(plot), f"{NAME}.svg": svg_of(plot)}


def _figure(results: Sequence[Result]) -> Figure:
    axes_of = [("data moved, all devices (MB)", _megabytes)]
    kinds = sorted({result.energy_kind for result in results} - {"none"})
    if kinds:
        axes_of.append((f"energy, all devices (J, {', '.join(kinds)})", _joules))
    figure = Figure(figsize=(WIDTH_IN, 3.2))
    panels = figure.subplots(1, len(axes_of), sharey=True, squeeze=False)[0]
    for axes, (label, across) in zip(panels, axes_of, strict=True):
        for (name, runs), look in zip(by_method(results).items(), run_looks(len(by_method(results))), strict=True):
            _lines(axes, name, runs, across, {**look, "markevery": 4})
        axes.axhline(100 * results[0].settings.target, color="#777777", linewidth=0.8)
        # Methods are an order of magnitude apart.
        axes.set_xscale("log")
        axes.set_xlabel(label)
    panels[0].set_ylabel("test accuracy (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, min(len(labels), 5)))
    return figure


def _lines(axes: Any, name: str, runs: Sequence[Result], across: Any, look: dict[str, Any]) -> None:
    for place, run in enumerate(runs):
        known = [
            (x, 100 * point.accuracy)
            for point in run.points
            if point.accuracy is not None and (x := across(point)) is not None
        ]
        axes.plot(*zip(*known, strict=True) if known else ((), ()), label=name if place == 0 else None, **look)
        cost = run.cost
        if cost is not None and cost.accuracy is not None and across(cost) is not None:
            ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "color": look["color"]}
            axes.plot([across(cost)], [100 * cost.accuracy], linestyle="", **ring)


def _megabytes(point: Point) -> float | None:
    return (point.bytes_down + point.bytes_up) / 1e6 or None


def _joules(point: Point) -> float | None:
    return point.joules or None
