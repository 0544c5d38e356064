"""What all plots of a report share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from sparsyedge.benchmarks.report.runs import ReportedRun

__all__ = ["WIDTH_IN", "Plot", "legend"]

WIDTH_IN = 7.0


@dataclass(frozen=True)
class Plot:
    """A figure, its file name and what a reader is told beneath it."""

    name: str
    caption: str
    figure: Figure


def legend(figure: Figure, runs: Sequence[ReportedRun]) -> None:
    """One legend for all panels, above them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(runs), 4))
