"""What all plots of a report share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsyedge.benchmarks.report.runs import ReportedRun

__all__ = ["WIDTH_IN", "Plot", "legend", "map_title"]

WIDTH_IN = 7.0
LETTERS_PER_IN = 13
HANDLE_LETTERS = 6
"""What the line and the gap beside a label take."""
MAP_SHARE = 0.7
"""Of the width; the rest is taken by names of layers and the scale of colours."""


@dataclass(frozen=True)
class Plot:
    """A figure, its file name and what a reader is told beneath it."""

    name: str
    caption: str
    figure: Figure


def legend(figure: Figure, runs: Sequence[ReportedRun]) -> None:
    """One legend for all panels, above them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    room = int(LETTERS_PER_IN * WIDTH_IN) // (max(map(len, labels)) + HANDLE_LETTERS)
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, min(len(runs), 5, room)))


def map_title(axes: Axes, run: ReportedRun, *, maps: int) -> None:
    """The run's name over its map, in as many lines as the maps beside it leave room for."""
    axes.set_title(fill(run.label, int(LETTERS_PER_IN * WIDTH_IN * MAP_SHARE) // maps), fontsize=9)
