"""The result of `sparsyedge bench step`: one JSON document, or tables for a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.step.contestants import OURS

__all__ = ["StepResult", "as_json", "print_result"]


@dataclass(frozen=True)
class StepResult:
    """All measurements; None for a contestant that cannot run on this machine."""

    profile: str
    threads: int
    isa: str
    global_sparsity: float
    median_ms: Mapping[str, float | None]
    min_ms: Mapping[str, float | None]
    speedup: Mapping[str, float | None]
    """By peer: its median over ours."""
    phase_ms: Mapping[str, float]
    peak_mb: Mapping[str, float | None]
    machine: Mapping[str, Any]
    notes: tuple[str, ...]
    """Missing contestants and why, which variant of a peer counted, and warnings about differing losses."""
    dense_ms: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of a step of round 1, from dense weights; empty unless requested."""
    update_bytes: Mapping[str, int] = field(default_factory=dict)
    """An update from round 2 on, after a few steps: by codec, and as plain float32."""


def as_json(result: StepResult) -> str:
    """The result as one JSON document."""
    return json.dumps(dataclasses.asdict(result))


def print_result(console: Console, result: StepResult) -> None:
    """Print the contestants, the parts of our step, the machine, and the notes."""
    console.print(
        f"one training step: {result.profile}, {result.global_sparsity:.2%} zeros, "
        f"threads {result.threads}, {result.isa}",
        highlight=False,
        markup=False,
    )
    console.print(_contestants(result))
    if result.phase_ms:
        console.print(_phases(result.phase_ms))
    if result.dense_ms:
        console.print(_dense(result.dense_ms))
    if result.update_bytes:
        listed = ", ".join(f"{name} {count:,}" for name, count in result.update_bytes.items())
        console.print(f"bytes of an update from round 2 on: {listed}", highlight=False, markup=False)
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [f"{machine['cpu']}, {machine['cores']} cores, commit {machine['commit'] or 'unknown'}", versions]
    for line in (*lines, *result.notes):
        console.print(line, style="yellow" if line.startswith("WARNING") else None, highlight=False, markup=False)


def _contestants(result: StepResult) -> Table:
    table = Table()
    table.add_column("contestant")
    for heading in ("median ms", "min ms", "ours is faster", *(["peak MB"] if result.peak_mb else [])):
        table.add_column(heading, justify="right")
    for name, median in result.median_ms.items():
        cells = [_number(median), _number(result.min_ms[name]), _number(result.speedup.get(name), "x", 2)]
        if result.peak_mb:
            cells.append(_number(result.peak_mb[name]))
        table.add_row(name, *cells, style="bold" if name == OURS else None)
    return table


def _phases(phase_ms: Mapping[str, float]) -> Table:
    table = Table(title="parts of our step", title_justify="left")
    table.add_column("part")
    for heading in ("ms", "share"):
        table.add_column(heading, justify="right")
    total = sum(phase_ms.values())
    for part, value in phase_ms.items():
        table.add_row(part.replace("_", " "), f"{value:.1f}", f"{value / total:.0%}")
    return table


def _dense(dense_ms: Mapping[str, float]) -> Table:
    table = Table(title="round 1, all weights", title_justify="left")
    table.add_column("step")
    for heading in ("ms", "of the stock graph"):
        table.add_column(heading, justify="right")
    stock = dense_ms["training_api_stock"]
    for name, value in dense_ms.items():
        table.add_row(name.replace("_", " "), f"{value:.1f}", f"{value / stock:.2f}x")
    return table


def _number(value: float | None, unit: str = "", digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
