"""Plots of masks and weights: how sparse, what grew back, how much masks overlap, how far weights moved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import methodcaller

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsyedge.benchmarks.report.plot import (
    WIDTH_IN,
    Plot,
    Points,
    draw_runs,
    legend,
    map_columns,
    map_panels,
    map_scale,
    map_title,
)
from sparsyedge.benchmarks.report.run_data import ReportedRun
from sparsyedge.coordinator.record.metrics import LAYER_PREFIX, iou_matrix

__all__ = ["cell_edges", "layers", "movement", "overlap", "sparsity"]

MAPS = 12
"""Each map shows one run; more maps would make the figure taller than a page."""
REGROWN = {"regrown_global": "grown back in the model", "regrown_devices": "grown back on a device"}


def sparsity(runs: Sequence[ReportedRun]) -> Plot | None:
    """Global sparsity and regrown weights, in the model and on devices, over the rounds."""
    counted = any(_regrown(run, "regrown_devices")[0] for run in runs)
    names = list(REGROWN) if counted else ["regrown_global"]
    figure = Figure(figsize=(WIDTH_IN, 2.8))
    first, *others = figure.subplots(1, 1 + len(names))
    draw_runs(first, runs, _zero_weights)
    first.set_title("sparsity", fontsize=9)
    first.set_ylabel("zero weights (%)")
    _draw_regrown(others, runs, names)
    for axes in figure.axes:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    legend(figure, runs)
    caption = (
        "Sparsity: share of the prunable weights of the global model that are zero. Grown back in the model: prunable "
        "weights that were zero before the round and are not after it, from round 2 on."
    )
    if counted:
        caption += (
            " On a device they are counted when it has trained but not yet pruned (mean over the cohort); most can be "
            "gone again before the pruned updates are averaged into the model."
        )
    return Plot("sparsity", caption, figure)


def layers(runs: Sequence[ReportedRun]) -> Plot | None:
    """The sparsity of every layer over the rounds, as one map per run."""
    mappable = [run for run in runs if _layer_names(run)]
    if not mappable:
        return None
    shown = mappable[:MAPS]
    # Runs may have different models.
    names = list(dict.fromkeys(name for run in shown for name in _layer_names(run)))
    columns = map_columns(len(shown))
    # With several rows, pack the names as closely as is still readable.
    cell_in = 0.17 if columns == len(shown) else 0.12
    figure, panels = map_panels(len(shown), height_in=0.9 + cell_in * len(names), sharey=True)
    for axes, run in zip(panels, shown, strict=True):
        rounds = [record.round for record in run.rounds if record.round in run.metrics]
        values = [[100 * run.metrics[number].get(name, np.nan) for number in rounds] for name in names]
        image = axes.pcolormesh(cell_edges(rounds), range(len(names) + 1), values, vmin=0, vmax=100, cmap="cividis")
        map_title(axes, run, columns=columns)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.tick_params(axis="y", labelsize=7)
        axes.grid(visible=False)
    panels[0].set_yticks([place + 0.5 for place in range(len(names))], [_short(name) for name in names])
    panels[0].invert_yaxis()
    map_scale(figure, panels, image, label="zero weights (%)")
    caption = "Sparsity of every prunable tensor of the global model, from the input down."
    return Plot("layers", caption + _left_out(runs, mappable), figure)


def overlap(runs: Sequence[ReportedRun]) -> Plot | None:
    """The mask overlap between any two rounds, as one map per run."""
    mappable = [run for run in runs if len(run.masks) > 1]
    if not mappable:
        return None
    shown = mappable[:MAPS]
    columns = map_columns(len(shown))
    # Maps are square and as wide as the numbers beside them allow; a title and numbers also go above and below.
    side_in = min(2.9, 6.0 / columns - 0.4)
    figure, panels = map_panels(len(shown), height_in=side_in + 0.7)
    for axes, run in zip(panels, shown, strict=True):
        edges = cell_edges(list(run.masks))
        image = axes.pcolormesh(edges, edges, iou_matrix(list(run.masks.values())), vmin=0, vmax=1, cmap="viridis")
        map_title(axes, run, columns=columns)
        axes.set_aspect("equal")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    for axes in panels[::columns]:
        axes.set_ylabel("round")
    map_scale(figure, panels, image, label="IoU of the two masks")
    caption = "Overlap (intersection over union) of the global model's masks in any two rounds."
    return Plot("overlap", caption + _left_out(runs, mappable), figure)


def movement(runs: Sequence[ReportedRun]) -> Plot | None:
    """How far weights moved: from the start of the run, in a round, and on a device."""
    measures = [("l2", "L2 distance"), ("cosine", "cosine")]
    spans = [("global", "since the first model"), ("round", "in a round"), ("device_mean", "on a device")]
    if not any(run.metrics for run in runs):
        return None
    figure = Figure(figsize=(WIDTH_IN, 4.2))
    grid = figure.subplots(2, 3, sharex=True)
    for row, (measure, unit) in zip(grid, measures, strict=True):
        for axes, (span, title) in zip(row, spans, strict=True):
            draw_runs(axes, runs, methodcaller("figure", f"{measure}_{span}"))
            if measure == "l2":
                axes.set_title(title, fontsize=9)
            else:
                axes.set_xlabel("round")
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0].set_ylabel(unit)
    legend(figure, runs)
    return Plot("movement", "Mean over the trained tensors; the device's is the mean over the cohort.", figure)


def _draw_regrown(panels: Sequence[Axes], runs: Sequence[ReportedRun], names: Sequence[str]) -> None:
    """A panel per figure, all on one scale to compare them."""
    for axes, name in zip(panels, names, strict=True):
        draw_runs(axes, runs, partial(_regrown, name=name))
        axes.set_title(REGROWN[name], fontsize=9)
    most = max((value for run in runs for name in names for value in _regrown(run, name)[1]), default=0.0)
    for axes in panels:
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0, top=max(10.0, 2 * most))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.tick_params(axis="y", labelleft=axes is panels[0])
    panels[0].set_ylabel("weights")


def _zero_weights(run: ReportedRun) -> Points:
    return [record.round for record in run.rounds], [100 * record.global_sparsity for record in run.rounds]


def _regrown(run: ReportedRun, name: str) -> Points:
    # Round 1 starts from a dense model, so nothing can grow back.
    return run.figure(name, first_round=2)


def _left_out(runs: Sequence[ReportedRun], mappable: Sequence[ReportedRun]) -> str:
    """A caption's note on runs without a map; empty if every run has one."""
    told = ""
    beyond = ", ".join(run.label for run in mappable[MAPS:])
    if beyond:
        told += f" Maps of the first {MAPS} of {len(mappable)} runs; left out: {beyond}."
    mapped = {run.label for run in mappable}
    without = ", ".join(run.label for run in runs if run.label not in mapped)
    if without:
        told += f" Nothing to map in: {without}."
    return told


def _layer_names(run: ReportedRun) -> list[str]:
    """The names of the per-layer figures, in the order of the model."""
    figures = run.metrics.get(run.rounds[-1].round, {}) if run.rounds else {}
    return [name for name in figures if name.startswith(LAYER_PREFIX)]


def _short(name: str) -> str:
    return name.removeprefix(LAYER_PREFIX).removesuffix(".weight")


def cell_edges(rounds: Sequence[int]) -> list[float]:
    """The edges of a map's cells, half way between the rounds."""
    middles = [(first + second) / 2 for first, second in pairwise(rounds)]
    return [rounds[0] - 0.5, *middles, rounds[-1] + 0.5]
