"""Tables for an 80-column terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

from rich import box
from rich.table import Table

from sparsyedge.coordinator.record.records import DeviceRecord, RoundRecord, RunRecord, RunSummary
from sparsyedge.edge.device.energy import joules_mark
from sparsyedge.edge.phase_costs import Phase, PhaseCost

__all__ = ["compact_table", "describe_history", "describe_run", "device_table", "meter_line", "ratio", "round_table"]

FLOAT32_BYTES = 4
PHASES: tuple[str, ...] = get_args(Phase)


def describe_run(run: RunRecord, closed: int) -> str:
    """Describe a run's progress in one line."""
    line = f"run {run.name} of fleet {run.fleet}: {run.state}, {closed} of {run.rounds} rounds closed"
    if run.state in ("running", "paused"):
        return f"{line}; process {run.pid} last seen {max(0.0, time.time() - run.seen_at):.0f} s ago"
    return f"{line}; {run.reason}" if run.reason else line


def describe_history(summary: RunSummary) -> Iterator[str]:
    """Yield a line on the run's initial model, and one for each change of its number of rounds."""
    if summary.run.began_from:
        yield f"began from {summary.run.began_from}"
    for before, after in pairwise(summary.stretches):
        yield f"from round {after.first_round} on: {after.rounds} rounds in all, planned were {before.rounds}"


def round_table(rounds: tuple[RoundRecord, ...]) -> Table:
    """One row per closed round."""
    title = "rounds (MB of all devices; bytes and non-zeros as times less than dense)"
    sides = ("down MB", "bytes", "nz", "up MB", "bytes", "nz")
    regression = any(record.test_rmse is not None for record in rounds)
    table = compact_table(title, "round", "RMSE" if regression else "acc", "sparse", *sides, "updates", "seconds")
    # So many columns leave no room for padding beyond the box's own, here and in the device table.
    table.padding = (0, 0, 0, 0)
    for record in rounds:
        dense = record.dense_bytes * record.updates
        table.add_row(
            str(record.round),
            _score(record),
            f"{record.global_sparsity:.4f}",
            f"{record.bytes_down / 1e6:.2f}",
            ratio(dense, record.bytes_down),
            ratio(dense, FLOAT32_BYTES * record.nonzeros_down),
            f"{record.bytes_up / 1e6:.2f}",
            ratio(dense, record.bytes_up),
            ratio(dense, FLOAT32_BYTES * record.nonzeros_up),
            f"{record.updates}" + (f" (+{record.refused})" if record.refused else ""),
            f"{record.seconds:.1f}",
        )
    return table


def device_table(devices: tuple[DeviceRecord, ...]) -> Table:
    """One row per device: the seconds of each phase over all rounds, and joules if known."""
    # Few fleets evaluate on devices, and 80 columns have no room to spare.
    phases = [phase for phase in PHASES if phase != "evaluate" or any(phase in device.phases for device in devices)]
    table = compact_table("devices (seconds and joules of all rounds)", "device", "", *phases, "steps", "peak MB")
    table.padding = (0, 0, 0, 0)
    for device in devices:
        costs = [device.phases.get(phase, PhaseCost(0.0, None)) for phase in phases]
        metered = any(cost.joules is not None for cost in costs)
        unit = f"J{joules_mark(device.joules_kind)}"
        table.add_row(
            device.id,
            f"s\n{unit}" if metered else "s",
            *[f"{cost.seconds:.1f}\n{_joules(cost)}" if metered else f"{cost.seconds:.1f}" for cost in costs],
            str(device.steps),
            f"{device.peak_rss_mb:.0f}",
        )
    return table


def meter_line(devices: tuple[DeviceRecord, ...]) -> str:
    """How each device's joules were measured; shown wherever joules are."""
    meters = sorted({device.meter for device in devices})
    return f"joules    {', '.join(meters)}"


def _score(record: RoundRecord) -> str:
    """The accuracy, or the error of a regression, in five characters or so."""
    if record.test_rmse is not None:
        return f"{record.test_rmse:.3g}"
    return "-" if record.test_accuracy is None else f"{record.test_accuracy:.1%}"


def _joules(cost: PhaseCost) -> str:
    return "-" if cost.joules is None else f"{cost.joules:.1f}"


def compact_table(title: str, *headings: str) -> Table:
    """Make a table that fits an 80-column terminal."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "device" else "right", no_wrap=True)
    return table


def ratio(dense_bytes: int, sent_bytes: int) -> str:
    """Format how many times smaller than dense float32 the transfer was."""
    return "-" if sent_bytes == 0 else f"{dense_bytes / sent_bytes:.1f}x"
