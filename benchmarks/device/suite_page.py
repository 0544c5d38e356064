"""A suite's page: seconds per batch as bars beside published ones, heat over the soak, and the tables."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

from sparsyedge.benchmarks.device.boards_known import known_rows
from sparsyedge.benchmarks.device.plots import STYLE, lines
from sparsyedge.benchmarks.device.suite_result import SuiteResult
from sparsyedge.benchmarks.device.suite_tables import suite_comparison, suite_energy_line, suite_summary

__all__ = ["draw_suite", "suite_page"]

Series = dict[str, dict[str, float]]
"""Seconds per batch by series and workload."""
HATCHES = {"measured": "", "published": "//", "modelled": ".."}


def draw_suite(results: Sequence[SuiteResult]) -> bytes | None:
    """A PNG; None without matplotlib, as on a board, and without a measured workload."""
    try:
        from matplotlib.figure import Figure

        from sparsyedge.benchmarks.report.style import figure_style
    except ModuleNotFoundError:
        return None
    names = [row.workload for result in results for row in result.rows if row.cost is not None]
    workloads = list(dict.fromkeys(names))
    if not workloads:
        return None
    with figure_style():
        figure = Figure(figsize=(7.0, 1.4 + 0.5 * len(workloads)), layout="constrained")
        axes = figure.subplots(1, 2, width_ratios=(2, 1))
        _bars(axes[0], workloads, results)
        _heat(axes[1], results)
        output = io.BytesIO()
        figure.savefig(output, format="png", metadata={"Software": None})
    return output.getvalue()


def suite_page(results: Sequence[SuiteResult], picture: bytes | None) -> str:
    """One self-contained HTML file."""
    title = f"sparsyedge bench device, suite {results[0].suite}: " + ", ".join(result.name for result in results)
    image = ""
    if picture is not None:
        data = base64.b64encode(picture).decode()
        image = f'<img alt="seconds per batch by workload" src="data:image/png;base64,{data}">'
    tables = [*(suite_summary(result) for result in results), suite_comparison(results)]
    machines = "\n".join(
        f"<h2>{html.escape(result.name)}</h2><p>{html.escape(suite_energy_line(result))}</p>"
        f"<pre>{html.escape(lines({**result.machine, **result.settings}))}</pre>"
        for result in results
    )
    body = "\n".join(f"<pre>{html.escape(table)}</pre>" for table in tables)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{image}{body}{machines}</html>\n"
    )


def _series(results: Sequence[SuiteResult]) -> list[tuple[str, str, dict[str, float]]]:
    """Name, kind and seconds by workload: boards as measured, then as published and as modelled."""
    found = [
        (result.name, "measured", {row.workload: row.cost.batch_s.median for row in result.rows if row.cost})
        for result in results
    ]
    for kind in ("published", "modelled"):
        boards: Series = {}
        for each in known_rows():
            if each.kind == kind:
                boards.setdefault(each.board, {})[each.workload] = each.seconds
        found += [(board, kind, seconds) for board, seconds in boards.items()]
    return found


def _bars(axes: Any, workloads: Sequence[str], results: Sequence[SuiteResult]) -> None:
    from sparsyedge.benchmarks.report.style import RUN_COLOURS

    series = [each for each in _series(results) if any(workload in each[2] for workload in workloads)]
    height = 0.8 / len(series)
    for place, (name, kind, seconds) in enumerate(series):
        shown = [(index, seconds[workload]) for index, workload in enumerate(workloads) if workload in seconds]
        axes.barh(
            [index + place * height for index, _ in shown],
            [value for _, value in shown],
            height,
            label=f"{name[:22]}, {kind}",
            color=RUN_COLOURS[place % len(RUN_COLOURS)],
            hatch=HATCHES[kind],
            edgecolor="white",
        )
    axes.set_yticks([index + 0.4 - height / 2 for index in range(len(workloads))], workloads, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("s per batch of 16")
    axes.figure.legend(loc="outside upper center", ncols=2, fontsize=7)


def _heat(axes: Any, results: Sequence[SuiteResult]) -> None:
    """Temperature over the whole suite, one workload after the other."""
    from sparsyedge.benchmarks.report.style import RUN_COLOURS

    for place, result in enumerate(results):
        begun_s, across, up = 0.0, [], []
        for row in result.rows:
            samples = row.cost.soak.samples if row.cost is not None else []
            across += [(begun_s + sample.at_s) / 60 for sample in samples if sample.celsius is not None]
            up += [sample.celsius for sample in samples if sample.celsius is not None]
            begun_s += samples[-1].at_s if samples else 0.0
        axes.plot(across, up, color=RUN_COLOURS[place % len(RUN_COLOURS)])
        if not up:
            axes.text(0.5, 0.5, "no thermometer", transform=axes.transAxes, ha="center")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("C")
