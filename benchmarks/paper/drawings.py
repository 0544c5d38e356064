"""The paper's figures from our results: accuracy against values exchanged, masks of all pairs of rounds, layers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsyedge.benchmarks.paper.curves import draw_curves
from sparsyedge.benchmarks.paper.experiments import Row
from sparsyedge.benchmarks.paper.mask_overlap import overlap_of
from sparsyedge.benchmarks.report.mask_figures import cell_edges
from sparsyedge.benchmarks.report.plot import WIDTH_IN, map_columns, map_panels, map_scale
from sparsyedge.benchmarks.report.style import figure_style, run_looks
from sparsyedge.edge.errors import ConfigError, DataError
from sparsyedge.edge.storage import write_atomically

__all__ = ["check_plot_path", "exchanged", "write_drawing"]

SUFFIXES = (".png", ".svg")
MARKS = 8

Results = Sequence[tuple[Row, Sequence[dict[str, Any]]]]
Drawing = Literal["curves", "exchange", "overlap", "layers"]


def check_plot_path(path: Path) -> None:
    """Raise ConfigError for a file that is neither PNG nor SVG."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the file's name must end in {' or '.join(SUFFIXES)}")


def write_drawing(kind: Drawing, results: Results, path: Path) -> None:
    """Draw the results as this kind of figure into a PNG or SVG file."""
    check_plot_path(path)
    with figure_style():
        figure = DRAWINGS[kind](results)
        content = io.BytesIO()
        is_svg = path.suffix == ".svg"
        figure.savefig(content, format=path.suffix.removeprefix("."), metadata={"Date": None} if is_svg else {})
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise ConfigError(f"cannot write the plot to {path}: {error}; choose another file with --plot") from error


def exchanged(document: dict[str, Any]) -> list[tuple[float, float]]:
    """Each evaluation of a run: the values that a device of every cohort has exchanged by then, and the accuracy."""
    points, total = [], 0.0
    for record in document["rounds"]:
        total += (record["nonzeros_down"] + record["nonzeros_up"]) / max(1, record["updates"])
        if record.get("test_accuracy") is not None:
            points.append((total, 100 * record["test_accuracy"]))
    return points


def _draw_exchange(results: Results) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.4))
    axes = figure.subplots()
    for (row, documents), look in zip(results, run_looks(len(results)), strict=True):
        runs = [exchanged(document) for document in documents]
        # Seeds are evaluated in the same rounds; one that was cut short ends the line.
        means = [tuple(sum(each) / len(each) for each in zip(*points, strict=True)) for points in zip(*runs)]  # noqa: B905
        across, up = zip(*means, strict=True) if means else ((), ())
        axes.plot(across, up, label=row.label, markevery=max(1, len(means) // MARKS), **look)
    axes.set_xscale("log")
    axes.set_xlabel("values exchanged by a device that takes part in every round, both ways")
    axes.set_ylabel("accuracy (%)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(5, len(results)))
    return figure


def _draw_overlap(results: Results) -> Figure:
    found = [(row, overlap_of(documents[0])) for row, documents in results]
    maps = [(row, known) for row, known in found if known is not None]
    if not maps:
        raise DataError(
            "none of these results has the overlap of its masks: they were made by an earlier version, or have one "
            "round; run them again with another --results, or leave --plot out"
        )
    columns = map_columns(len(maps))
    side_in = min(2.9, 6.0 / columns - 0.4)
    figure, panels = map_panels(len(maps), height_in=side_in + 0.7)
    for axes, (row, (rounds, overlap)) in zip(panels, maps, strict=True):
        edges = cell_edges(rounds)
        image = axes.pcolormesh(edges, edges, overlap, vmin=0, vmax=1, cmap="viridis")
        axes.set_title(fill(row.label, 60 // columns), fontsize=9)
        axes.set_aspect("equal")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    for axes in panels[::columns]:
        axes.set_ylabel("round")
    map_scale(figure, panels, image, label="IoU of the two masks")
    return figure


def _draw_layers(results: Results) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.4))
    axes = figure.subplots()
    names: list[str] = []
    for (row, documents), look in zip(results, run_looks(len(results)), strict=True):
        layers = [document["layer_sparsity"] for document in documents]
        names = list(layers[0])
        shares = [100 * sum(each[name] for each in layers) / len(layers) for name in names]
        axes.plot(range(len(names)), shares, label=row.label, **look)
    axes.set_xticks(range(len(names)), [name.removesuffix(".weight") for name in names], rotation=90, fontsize=7)
    axes.set_ylabel("zero weights (%)")
    axes.set_ylim(0, 100)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(results)))
    return figure


DRAWINGS: dict[Drawing, Callable[[Results], Figure]] = {
    "curves": draw_curves,
    "exchange": _draw_exchange,
    "overlap": _draw_overlap,
    "layers": _draw_layers,
}
