"""What a finished run shows: a table per round, a table per device, or one JSON document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from sparsyedge.coordinator.records import DeviceRecord, RunSummary
from sparsyedge.coordinator.tables import compact_table, round_table
from sparsyedge.edge.energy import Phase, PhaseCost

__all__ = ["as_json", "print_rounds", "print_summary"]

PHASES: tuple[str, ...] = get_args(Phase)


def print_summary(console: Console, summary: RunSummary) -> None:
    """Both tables, and where the results are."""
    console.print()
    console.print(round_table(summary.rounds))
    console.print(_device_table(summary.devices))
    console.print(_meter_line(summary.devices), highlight=False, soft_wrap=True)
    _print_places(console, summary)


def print_rounds(console: Console, summary: RunSummary) -> None:
    """The rounds alone, for runs of many devices, and where the results are."""
    console.print()
    console.print(round_table(summary.rounds))
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


def _device_table(devices: tuple[DeviceRecord, ...]) -> Table:
    table = compact_table("devices (seconds and joules of all rounds)", "device", "", *PHASES, "steps", "peak MB")
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


def _joules(cost: PhaseCost) -> str:
    return "-" if cost.joules is None else f"{cost.joules:.1f}"


def _device_document(device: DeviceRecord) -> dict[str, Any]:
    phases = {name: {"seconds": cost.seconds, "joules": cost.joules} for name, cost in device.phases.items()}
    return {**{field.name: getattr(device, field.name) for field in dataclasses.fields(device)}, "phases": phases}
