"""Shared by all plots of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from sparsyedge.benchmarks.report.run_data import ReportedRun
from sparsyedge.benchmarks.report.style import RUN_COLOURS, run_looks

__all__ = ["WIDTH_IN", "Plot", "Points", "draw_runs", "legend", "map_columns", "map_panels", "map_scale", "map_title"]

WIDTH_IN = 7.0
LETTERS_PER_IN = 13
HANDLE_LETTERS = 8
"""Room for the line and the gap next to a label."""
HANDLE_EMS = 3.0
"""At matplotlib's default of two, dashed lines look alike."""
LEGEND_ROW_IN = 0.19
MARKS = 8
"""Markers on a long line; a marker on every round would hide the line style."""
MAP_SHARE = 0.7
"""Share of the width; layer names and the colour scale take the rest."""
MAP_COLUMNS = 4
SCALE_SHARE = 0.6
"""Share of the figure's height."""
SCALE_WIDTH_IN = 0.12

Points = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Plot:
    """A figure, its file name and its caption."""

    name: str
    caption: str
    figure: Figure


def draw_runs(axes: Axes, runs: Sequence[ReportedRun], points_of: Callable[[ReportedRun], Points]) -> None:
    """Draw one line per run in the run's own style; a run without points stays in the legend."""
    for place, (run, look) in enumerate(zip(runs, run_looks(len(runs)), strict=True)):
        across, up = points_of(run)
        every = max(1, len(across) // MARKS)
        # Coinciding lines stay visible if each marks other rounds than the line before it and the previous line of its
        # colour. The latter fails if `every` equals the number of colours.
        start = (place + place // len(RUN_COLOURS)) % every
        axes.plot(across, up, label=run.label, markevery=(start, every), **look)


def legend(figure: Figure, runs: Sequence[ReportedRun]) -> None:
    """One legend for all panels, above them; the figure grows by the rows beyond the first."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    room = int(LETTERS_PER_IN * WIDTH_IN) // (max(map(len, labels)) + HANDLE_LETTERS)
    columns = max(1, min(len(runs), 5, room))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=HANDLE_EMS)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_IN * (ceil(len(labels) / columns) - 1))


def map_columns(maps: int) -> int:
    """How many maps go side by side: use the fewest rows, then the fewest columns, to keep rows even."""
    return ceil(maps / ceil(maps / MAP_COLUMNS))


def map_panels(maps: int, *, height_in: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each map over the rounds, in rows of `height_in`."""
    columns = map_columns(maps)
    rows = ceil(maps / columns)
    figure = Figure(figsize=(WIDTH_IN, height_in * rows), layout="compressed")
    panels = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for unused in panels[maps:]:
        unused.remove()
    for axes in panels[max(0, maps - columns) : maps]:
        axes.set_xlabel("round")
    return figure, panels[:maps]


def map_scale(figure: Figure, panels: Sequence[Axes], image: QuadMesh, *, label: str) -> None:
    """Draw one colour scale for all maps, equally narrow for any number of rows."""
    aspect = SCALE_SHARE * figure.get_figheight() / SCALE_WIDTH_IN
    figure.colorbar(image, ax=panels, label=label, shrink=SCALE_SHARE, aspect=aspect)


def map_title(axes: Axes, run: ReportedRun, *, columns: int) -> None:
    """Put the run's name over its map, wrapped to the map's width."""
    axes.set_title(fill(run.label, int(LETTERS_PER_IN * WIDTH_IN * MAP_SHARE) // columns), fontsize=9)
