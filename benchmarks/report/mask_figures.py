"""Plots of masks and weights: how sparse, what grew back, how much masks overlap, how far weights moved."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsyedge.benchmarks.report.plot import WIDTH_IN, Plot, legend, map_title
from sparsyedge.benchmarks.report.runs import ReportedRun
from sparsyedge.benchmarks.report.style import run_looks
from sparsyedge.coordinator.metrics import LAYER_PREFIX, iou_matrix

__all__ = ["layers", "movement", "overlap", "sparsity"]

MAPS = 4
"""Maps show one run each; a page has room for so many side by side."""


def sparsity(runs: Sequence[ReportedRun]) -> Plot | None:
    """Global sparsity, and the weights that grew back, over the rounds."""
    figure = Figure(figsize=(WIDTH_IN, 2.8))
    left, right = figure.subplots(1, 2)
    for run, look in zip(runs, run_looks(len(runs)), strict=True):
        places = [record.round for record in run.rounds]
        left.plot(places, [100 * record.global_sparsity for record in run.rounds], label=run.label, **look)
        # Round 1 starts from a dense model: nothing can grow back in it.
        right.plot(*run.figure("regrown_global", first_round=2), **look)
    left.set_ylabel("zero weights (%)")
    right.set_ylabel("weights that grew back")
    right.set_yscale("symlog", linthresh=1)
    most = max((value for run in runs for value in run.figure("regrown_global", first_round=2)[1]), default=0.0)
    right.set_ylim(bottom=0, top=max(10.0, 2 * most))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (left, right):
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, runs)
    caption = (
        "Left: share of the prunable weights of the global model that are zero. Right: prunable weights that were zero "
        "in the model before and are not any more, from round 2 on."
    )
    return Plot("sparsity", caption, figure)


def layers(runs: Sequence[ReportedRun]) -> Plot | None:
    """The sparsity of every layer over the rounds, as one map per run."""
    shown = [run for run in runs if _layer_names(run)][:MAPS]
    if not shown:
        return None
    names = _layer_names(shown[0])
    figure = Figure(figsize=(WIDTH_IN, 1.2 + 0.17 * len(names)))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, run in zip(panels, shown, strict=True):
        rounds = [record.round for record in run.rounds if record.round in run.metrics]
        values = [[100 * run.metrics[number].get(name, np.nan) for number in rounds] for name in names]
        image = axes.pcolormesh(_edges(rounds), range(len(names) + 1), values, vmin=0, vmax=100, cmap="cividis")
        map_title(axes, run, maps=len(shown))
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.grid(visible=False)
    panels[0].set_yticks([place + 0.5 for place in range(len(names))], [_short(name) for name in names], fontsize=7)
    panels[0].invert_yaxis()
    figure.colorbar(image, ax=panels, label="zero weights (%)", shrink=0.6)
    return Plot("layers", "Sparsity of every prunable tensor of the global model, from the input down.", figure)


def overlap(runs: Sequence[ReportedRun]) -> Plot | None:
    """The overlap of the masks of any two rounds, as one map per run."""
    shown = [run for run in runs if len(run.masks) > 1][:MAPS]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH_IN, 3.6 if len(shown) == 1 else 2.6))
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, run in zip(panels, shown, strict=True):
        rounds = list(run.masks)
        edges = _edges(rounds)
        image = axes.pcolormesh(edges, edges, iou_matrix(list(run.masks.values())), vmin=0, vmax=1, cmap="viridis")
        map_title(axes, run, maps=len(shown))
        axes.set_xlabel("round")
        axes.set_aspect("equal")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    panels[0].set_ylabel("round")
    figure.colorbar(image, ax=panels, label="IoU of the two masks", shrink=0.8)
    return Plot("overlap", "Overlap (intersection over union) of the global model's masks in any two rounds.", figure)


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
            for run, look in zip(runs, run_looks(len(runs)), strict=True):
                axes.plot(*run.figure(f"{measure}_{span}"), label=run.label, **look)
            if measure == "l2":
                axes.set_title(title, fontsize=9)
            else:
                axes.set_xlabel("round")
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0].set_ylabel(unit)
    legend(figure, runs)
    return Plot("movement", "Mean over the trained tensors; the device's is the mean over the cohort.", figure)


def _layer_names(run: ReportedRun) -> list[str]:
    """The names of the per-layer figures, in the order of the model."""
    figures = run.metrics.get(run.rounds[-1].round, {}) if run.rounds else {}
    return [name for name in figures if name.startswith(LAYER_PREFIX)]


def _short(name: str) -> str:
    return name.removeprefix(LAYER_PREFIX).removesuffix(".weight")


def _edges(rounds: Sequence[int]) -> list[float]:
    """Where the cells of a map begin and end: half way between the rounds."""
    middles = [(first + second) / 2 for first, second in pairwise(rounds)]
    return [rounds[0] - 0.5, *middles, rounds[-1] + 0.5]
