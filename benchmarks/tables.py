"""What a finished run shows: a table per round, a table per device, or one JSON document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.coordinator.records import DeviceRecord, RoundRecord, RunSummary
from sparsyedge.edge.energy import Phase, PhaseCost

__all__ = ["as_json", "print_rounds", "print_summary", "ratio"]

PHASES: tuple[str, ...] = get_args(Phase)
FLOAT32_BYTES = 4


def ratio(dense_bytes: int, sent_bytes: int) -> str:
    """How many times less than dense float32 was moved, as text."""
    return "-" if sent_bytes == 0 else f"{dense_bytes / sent_bytes:.1f}x"


def print_summary(console: Console, summary: RunSummary) -> None:
    """Both tables, and where the results are."""
    console.print()
    console.print(_round_table(summary.rounds))
    console.print(_device_table(summary.devices))
    console.print(_meter_line(summary.devices), highlight=False, soft_wrap=True)
    _print_places(console, summary)


def print_rounds(console: Console, summary: RunSummary) -> None:
    """The rounds alone, for runs of many devices, and where the results are."""
    console.print()
    console.print(_round_table(summary.rounds))
    _print_places(console, summary)


def _print_places(console: Console, summary: RunSummary) -> None:
    console.print(f"model     {Path(summary.run_dir) / 'model.onnx'}", highlight=False, soft_wrap=True)
    console.print(f"sha256    {summary.run.model_sha256}", highlight=False, soft_wrap=True)
    console.print(f"run       {summary.run_dir}", highlight=False, soft_wrap=True)


def as_json(summary: RunSummary) -> str:
    """The run as one JSON document."""
    document: dict[str, Any] = {
        "rounds": [dataclasses.asdict(record) for record in summary.rounds],
        "devices": [_device_document(record) for record in summary.devices],
        "refusals": [dataclasses.asdict(record) for record in summary.refusals],
        "model_sha256": summary.run.model_sha256,
        "model_id": summary.run.model_id,
        "state": summary.run.state,
        "run_dir": summary.run_dir,
    }
    return json.dumps(document)


def _round_table(rounds: tuple[RoundRecord, ...]) -> Table:
    title = "rounds (MB of all devices; bytes and non-zeros as times less than dense)"
    sides = ("down MB", "bytes", "nz", "up MB", "bytes", "nz")
    table = _table(title, "round", "acc", "sparse", *sides, "updates", "seconds")
    # Eleven columns: the box's own space between them has to do.
    table.padding = (0, 0, 0, 0)
    for record in rounds:
        dense = record.dense_bytes * record.updates
        table.add_row(
            str(record.round),
            "-" if record.test_accuracy is None else f"{record.test_accuracy:.1%}",
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


def _device_table(devices: tuple[DeviceRecord, ...]) -> Table:
    table = _table("devices (seconds and joules of all rounds)", "device", "", *PHASES, "steps", "peak MB")
    for device in devices:
        costs = [device.phases.get(phase, PhaseCost(0.0, None)) for phase in PHASES]
        table.add_row(
            device.id,
            "s\nJ modelled" if device.energy_kind == "modelled" else "s\nJ",
            *[f"{cost.seconds:.1f}\n{_joules(cost)}" for cost in costs],
            str(device.steps),
            f"{device.peak_rss_mb:.0f}",
        )
    return table


def _meter_line(devices: tuple[DeviceRecord, ...]) -> str:
    """Joules never stand alone: how they were come by, for every device."""
    meters = sorted({device.meter for device in devices})
    return f"joules    {', '.join(meters)}"


def _table(title: str, *headings: str) -> Table:
    """A table that fits a terminal of 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "device" else "right", no_wrap=True)
    return table


def _joules(cost: PhaseCost) -> str:
    return "-" if cost.joules is None else f"{cost.joules:.1f}"


def _device_document(device: DeviceRecord) -> dict[str, Any]:
    phases = {name: {"seconds": cost.seconds, "joules": cost.joules} for name, cost in device.phases.items()}
    return {**{field.name: getattr(device, field.name) for field in dataclasses.fields(device)}, "phases": phases}
