"""Prints a finished run: a table of rounds, a table of devices, or one JSON document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from sparsyedge.coordinator.record.records import DeviceRecord, RunSummary
from sparsyedge.coordinator.record.tables import device_table, meter_line, round_table

__all__ = ["as_json", "print_rounds", "print_summary"]


def print_summary(console: Console, summary: RunSummary) -> None:
    """Print both tables and the place of the results."""
    console.print()
    console.print(round_table(summary.rounds))
    console.print(device_table(summary.devices))
    console.print(meter_line(summary.devices), highlight=False, soft_wrap=True)
    _print_places(console, summary)


def print_rounds(console: Console, summary: RunSummary) -> None:
    """Print only the rounds, for runs of many devices, and the place of the results."""
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


def _device_document(device: DeviceRecord) -> dict[str, Any]:
    phases = {name: {"seconds": cost.seconds, "joules": cost.joules} for name, cost in device.phases.items()}
    return {**{field.name: getattr(device, field.name) for field in dataclasses.fields(device)}, "phases": phases}
