"""What a finished run shows: a table per round, a table per device, or one JSON document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from sparsyedge.coordinator.records import DeviceRecord, RoundRecord, RunSummary
from sparsyedge.edge.energy import Phase, PhaseCost

__all__ = ["as_json", "print_summary", "ratio"]

PHASES: tuple[str, ...] = get_args(Phase)


def ratio(dense_bytes: int, sent_bytes: int) -> str:
    """How many times less than dense float32 was moved, as text."""
    return "-" if sent_bytes == 0 else f"{dense_bytes / sent_bytes:.1f}x"


def print_summary(console: Console, summary: RunSummary) -> None:
    """Both tables, and where the results are."""
    console.print()
    console.print(_round_table(summary.rounds))
    console.print(_device_table(summary.devices))
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
    table = Table(title="rounds: bytes are those of all devices, the ratio is to dense float32", title_justify="left")
    for heading in ("round", "accuracy", "sparsity", "down MB", "ratio", "up MB", "ratio", "updates", "refused", "s"):
        table.add_column(heading, justify="right")
    for record in rounds:
        dense = record.dense_bytes * record.updates
        table.add_row(
            str(record.round),
            "-" if record.test_accuracy is None else f"{record.test_accuracy:.1%}",
            f"{record.global_sparsity:.4f}",
            f"{record.bytes_down / 1e6:.2f}",
            ratio(dense, record.bytes_down),
            f"{record.bytes_up / 1e6:.2f}",
            ratio(dense, record.bytes_up),
            str(record.updates),
            str(record.refused),
            f"{record.seconds:.1f}",
        )
    return table


def _device_table(devices: tuple[DeviceRecord, ...]) -> Table:
    table = Table(title="devices: seconds and joules of all rounds, by phase", title_justify="left")
    table.add_column("device")
    for phase in PHASES:
        table.add_column(phase, justify="right")
    for heading in ("energy", "steps", "peak MB"):
        table.add_column(heading, justify="right")
    for device in devices:
        costs = [device.phases.get(phase, PhaseCost(0.0, None)) for phase in PHASES]
        table.add_row(
            device.id,
            *[f"{cost.seconds:.1f} s\n{_joules(cost)}" for cost in costs],
            f"{device.energy_kind}\n({device.energy_source})",
            str(device.steps),
            f"{device.peak_rss_mb:.0f}",
        )
    return table


def _joules(cost: PhaseCost) -> str:
    return "-" if cost.joules is None else f"{cost.joules:.1f} J"


def _device_document(device: DeviceRecord) -> dict[str, Any]:
    phases = {name: {"seconds": cost.seconds, "joules": cost.joules} for name, cost in device.phases.items()}
    return {**{field.name: getattr(device, field.name) for field in dataclasses.fields(device)}, "phases": phases}
