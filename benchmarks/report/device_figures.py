"""Plots of what devices found when they evaluated models on their own samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsyedge.benchmarks.report.plot import WIDTH_IN, Plot, Points, draw_runs, legend
from sparsyedge.benchmarks.report.run_data import ReportedRun
from sparsyedge.coordinator.record.device_evaluations import GLOBAL_PREFIX, PERSONAL_PREFIX

__all__ = ["accuracy_on_devices", "error_on_devices"]

MODELS = {GLOBAL_PREFIX: "global model", PERSONAL_PREFIX: "personal models"}


def accuracy_on_devices(runs: Sequence[ReportedRun]) -> Plot | None:
    """The accuracy of the global model and of personal models on devices, and over the worst tenth of them."""
    return _on_devices(runs, "accuracy", factor=100, label="accuracy on devices (%)")


def error_on_devices(runs: Sequence[ReportedRun]) -> Plot | None:
    """The same for the error of regressions."""
    return _on_devices(runs, "rmse", factor=1, label="RMSE on devices")


def _on_devices(runs: Sequence[ReportedRun], score: str, *, factor: float, label: str) -> Plot | None:
    if not any(run.figure(f"{GLOBAL_PREFIX}{score}")[0] for run in runs):
        return None
    figure = Figure(figsize=(WIDTH_IN, 4.6))
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, (suffix, which) in zip(panels, (("", "all devices"), ("_worst", "worst tenth")), strict=True):
        for axes, (prefix, model) in zip(row, MODELS.items(), strict=True):
            draw_runs(axes, runs, partial(_points, name=f"{prefix}{score}{suffix}", factor=factor))
            axes.set_title(f"{model}, {which}", fontsize=9)
        row[0].set_ylabel(label)
    for axes in panels[1]:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, runs)
    caption = (
        "Evaluated by the devices on samples of their own that they do not train on. Global model: the one that the "
        "round began with. Personal models: each device's own after training and pruning. All devices: mean by "
        "samples. Worst tenth: mean over the tenth of the devices with the worst figures, at least one."
    )
    return Plot(f"devices-{score}", caption, figure)


def _points(run: ReportedRun, *, name: str, factor: float) -> Points:
    rounds, values = run.figure(name)
    return rounds, [factor * value for value in values]
