"""The plots of a report; each function draws one figure over all runs, or returns None without data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from sparsyedge.benchmarks.report.device_figures import accuracy_on_devices, error_on_devices
from sparsyedge.benchmarks.report.mask_figures import layers, movement, overlap, sparsity
from sparsyedge.benchmarks.report.plot import WIDTH_IN, Plot, Points, draw_runs, legend
from sparsyedge.benchmarks.report.run_data import ReportedRun
from sparsyedge.benchmarks.report.style import PHASE_COLOURS, figure_style
from sparsyedge.coordinator.record.records import RoundRecord

__all__ = ["FIGURES", "draw_all"]

TIMELINE_DEVICES = 30
TIMELINE_ROUNDS = 20


Drawer = Callable[[Sequence[ReportedRun]], Plot | None]
FigureOf = Callable[[RoundRecord], float | None]
"""A round's figure; None if the round has none."""


def draw_all(runs: Sequence[ReportedRun]) -> list[Plot]:
    """Every figure for which the runs have data."""
    with figure_style():
        return [plot for draw in FIGURES if (plot := draw(runs)) is not None]


def accuracy(runs: Sequence[ReportedRun]) -> Plot | None:
    """Test accuracy against rounds, megabytes, seconds and, with a meter, joules."""
    caption = "Test accuracy of the global model against what it took to get there."
    return _against_cost(runs, _accuracy_of, name="accuracy", label="test accuracy (%)", caption=caption)


def error(runs: Sequence[ReportedRun]) -> Plot | None:
    """The error of regressions, against the same."""
    caption = "Root mean squared error of the global model on the test part against what it took to get there."
    return _against_cost(runs, _error_of, name="error", label="test RMSE", caption=caption)


def _against_cost(
    runs: Sequence[ReportedRun], figure_of: FigureOf, *, name: str, label: str, caption: str
) -> Plot | None:
    """One panel for each kind of cost; None if no run has the figure."""
    axes_of: list[tuple[str, Callable[[ReportedRun], Sequence[float] | None]]] = [
        ("round", lambda run: [record.round for record in run.rounds]),
        ("data moved, all devices (MB)", ReportedRun.megabytes),
        ("time (s)", ReportedRun.seconds),
    ]
    if any(run.joules() is not None for run in runs):
        axes_of.append((f"energy, all devices (J, {_kinds(runs)})", ReportedRun.joules))
    if all(figure_of(record) is None for run in runs for record in run.rounds):
        return None
    rows = len(axes_of) // 3 + len(axes_of) % 3
    figure = Figure(figsize=(WIDTH_IN, 0.6 + 2.0 * rows))
    panels = figure.subplots(rows, len(axes_of) // rows, sharey=True, squeeze=False)
    for axes, (cost, horizontal) in zip(panels.flat, axes_of, strict=True):
        draw_runs(axes, runs, partial(_points, figure_of=figure_of, across=horizontal))
        axes.set_xlabel(cost)
        axes.set_xlim(left=0)
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels[:, 0]:
        axes.set_ylabel(label)
    legend(figure, runs)
    return Plot(name, caption, figure)


def traffic(runs: Sequence[ReportedRun]) -> Plot | None:
    """How many times less than dense float32 the run moved, each way."""
    if not any(run.rounds for run in runs):
        return None
    figure = Figure(figsize=(WIDTH_IN, 2.8))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, way in zip(panels, ("down", "up"), strict=True):
        draw_runs(axes, runs, partial(_savings, way=way))
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(f"{way}link", fontsize=9)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    panels[0].set_ylabel("less than dense float32")
    legend(figure, runs)
    return Plot("traffic", "Whole messages, headers and statistics included, against dense float32 arrays.", figure)


def timeline(runs: Sequence[ReportedRun]) -> Plot | None:
    """A timeline of every device in the first rounds of the first run."""
    run = runs[0]
    first = [record.round for record in run.rounds[:TIMELINE_ROUNDS]]
    shown = [phase for phase in run.phases if phase.round in first]
    devices = sorted({phase.device for phase in shown})[:TIMELINE_DEVICES]
    if not devices:
        return None
    figure = Figure(figsize=(WIDTH_IN, 1.2 + 0.22 * len(devices)))
    axes = figure.subplots()
    start = min(run.opened_at[number] for number in first)
    ends: dict[tuple[int, str], float] = {}
    for phase in shown:
        if phase.device in devices:
            key = (phase.round, phase.device)
            left = ends.get(key, run.opened_at[phase.round] - start)
            axes.barh(devices.index(phase.device), phase.seconds, left=left, color=PHASE_COLOURS[phase.phase])
            ends[key] = left + phase.seconds
    for number in first:
        axes.axvline(run.opened_at[number] - start, color="#999999", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(devices)), devices)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("time since the first round was announced (s)")
    seen = {phase.phase for phase in shown}
    handles = [
        Patch(color=colour, label=name) for name, colour in PHASE_COLOURS.items() if name != "evaluate" or name in seen
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    caption = (
        f"{run.label}, rounds {first[0]} to {first[-1]}: the seconds of each phase, laid one after the other from the "
        "announcement of the round (dotted). Waiting is not shown."
    )
    return Plot("timeline", caption, figure)


def _accuracy_of(record: RoundRecord) -> float | None:
    return None if record.test_accuracy is None else 100 * record.test_accuracy


def _error_of(record: RoundRecord) -> float | None:
    return record.test_rmse


def _points(
    run: ReportedRun, *, figure_of: FigureOf, across: Callable[[ReportedRun], Sequence[float] | None]
) -> Points:
    """The evaluated rounds, with the value of `across` for each."""
    places = across(run)
    if places is None:
        return [], []
    known = [(place, figure_of(record)) for place, record in zip(places, run.rounds, strict=True)]
    points = [(place, value) for place, value in known if value is not None]
    return [place for place, _ in points], [value for _, value in points]


def _savings(run: ReportedRun, *, way: str) -> Points:
    """How many times less than dense float32 each round moved; skips rounds that moved nothing."""
    points = [
        (record.round, record.dense_bytes * record.updates / moved)
        for record in run.rounds
        if (moved := record.bytes_down if way == "down" else record.bytes_up)
    ]
    return [number for number, _ in points], [times for _, times in points]


def _kinds(runs: Sequence[ReportedRun]) -> str:
    """How the joules were obtained; every plot of joules must say so."""
    return ", ".join(sorted({kind for run in runs for kind in run.energy_kinds})) or "none"


FIGURES: tuple[Drawer, ...] = (
    *(accuracy, error, accuracy_on_devices, error_on_devices),
    *(sparsity, layers, overlap, movement, traffic, timeline),
)
