"""Runs a suite workload by workload, each in processes of its own; one that cannot run costs no other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.benchmarks.device.boards_known import measured_needs
from sparsyedge.benchmarks.device.children import WorkloadEnded, run_child
from sparsyedge.benchmarks.device.measurement import Task, Turn
from sparsyedge.benchmarks.device.room import Need, available_mb, missing_room, need_of
from sparsyedge.benchmarks.device.suite import BATCH, CLASSES, SuiteWorkload
from sparsyedge.benchmarks.device.suite_export import Export
from sparsyedge.benchmarks.device.suite_result import Cost, Outcome, Row, cost_of
from sparsyedge.benchmarks.device.suite_turn import Wanted
from sparsyedge.edge.model.artifacts import MANIFEST_NAME

__all__ = ["SuiteSettings", "export_all", "run_suite"]

TURN = "sparsyedge.benchmarks.device.suite_turn"
EXPORT = "sparsyedge.benchmarks.device.suite_export"
START_LIMIT_S = 600.0
"""How long a small board may take to load a model, on top of training."""
Say = Callable[[str], None]


class SuiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all workloads of a run share."""

    suite: str
    minutes: float
    batches: int
    """At least so many, also when the time is up."""
    limit_minutes: float
    """For one workload: its export, its batches and its soak each."""
    threads: int
    meter: str
    idle_s: float
    artifacts: str | None

    def as_settings(self) -> dict[str, Any]:
        """For the document; without what may differ between two machines that are compared."""
        return {
            "batch": BATCH,
            **{key: value for key, value in msgspec.to_builtins(self).items() if key != "artifacts"},
        }


def run_suite(
    workloads: tuple[SuiteWorkload, ...],
    settings: SuiteSettings,
    *,
    done: dict[str, Row],
    keep: Callable[[Row], None],
    say: Say,
) -> list[Row]:
    """One row for each workload, in order; those in `done` are taken from there, `keep` is called with each new one."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="sparsyedge-suite-") as scratch:
        for workload in workloads:
            row = done.get(workload.name)
            if row is None:
                row = _row(workload, settings, Path(scratch))
                keep(row)
            rows.append(row)
            say(_sentence(row))
    return rows


def export_all(workloads: tuple[SuiteWorkload, ...], folder: Path, *, limit_s: float, say: Say) -> list[str]:
    """Export what these workloads need into the folder; returns the names of those whose export failed."""
    failed = []
    for workload in {each.artifacts: each for each in workloads}.values():
        target = folder / workload.artifacts
        if (target / MANIFEST_NAME).is_file():
            say(f"{workload.artifacts}: is there")
            continue
        try:
            _export(workload, target, limit_s=limit_s)
            say(f"{workload.artifacts}: exported")
        except WorkloadEnded as ended:
            failed.append(workload.artifacts)
            say(f"{workload.artifacts}: {ended}")
    return failed


def _row(workload: SuiteWorkload, settings: SuiteSettings, scratch: Path) -> Row:
    need, free_mb = need_of(workload, measured_needs()), available_mb()
    cost, outcome, reason = _outcome(workload, settings, scratch, need)
    return Row(
        workload=workload.name,
        network=workload.network.title,
        pixels=workload.network.pixels,
        train=workload.train,
        method=workload.method,
        sparsity=workload.sparsity,
        batch=BATCH,
        outcome=outcome,
        reason=reason,
        need=need,
        available_mb=free_mb,
        cost=cost,
        load=round(os.getloadavg()[0], 2),
    )


def _outcome(
    workload: SuiteWorkload, settings: SuiteSettings, scratch: Path, need: Need
) -> tuple[Cost | None, Outcome, str]:
    folder = scratch if settings.artifacts is None else Path(settings.artifacts)
    missing = missing_room(need, folder) or _missing_artifacts(workload, settings)
    if missing:
        return None, "skipped", missing
    try:
        turn = _turn(workload, settings, folder / workload.artifacts)
    except WorkloadEnded as ended:
        return None, "ended", str(ended)
    return cost_of(turn, idle_s=settings.idle_s), "measured", ""


def _missing_artifacts(workload: SuiteWorkload, settings: SuiteSettings) -> str:
    if settings.artifacts is None or (Path(settings.artifacts) / workload.artifacts / MANIFEST_NAME).is_file():
        return ""
    return f"no artifacts in {settings.artifacts}/{workload.artifacts}; make them elsewhere with `--prepare DIR`"


def _turn(workload: SuiteWorkload, settings: SuiteSettings, artifacts: Path) -> Turn:
    limit_s = 60 * settings.limit_minutes
    if not (artifacts / MANIFEST_NAME).is_file():
        _export(workload, artifacts, limit_s=limit_s)
    task = Task(
        artifacts=str(artifacts),
        workload="",
        threads=settings.threads,
        seconds=60 * settings.minutes,
        meter=settings.meter,
        idle_s=settings.idle_s,
        least_steps=settings.batches,
        limit_s=limit_s,
    )
    wanted = Wanted(
        method=workload.method,
        width=workload.network.width,
        pixels=workload.network.pixels,
        train=workload.train,
        sparsity=workload.sparsity,
        batch=BATCH,
    )
    said = run_child(
        TURN,
        [msgspec.json.encode(task).decode(), msgspec.json.encode(wanted).decode()],
        limit_s=limit_s + settings.idle_s + START_LIMIT_S,
        what="the process that trains",
    )
    return msgspec.json.decode(said.strip().splitlines()[-1], type=Turn)


def _export(workload: SuiteWorkload, folder: Path, *, limit_s: float) -> None:
    network = workload.network
    wanted = Export(
        model=network.model,
        width=network.width,
        pixels=network.pixels,
        classes=CLASSES,
        method=workload.method,
        train=workload.train,
        folder=str(folder),
    )
    run_child(EXPORT, [msgspec.json.encode(wanted).decode()], limit_s=limit_s, what="the export")


def _sentence(row: Row) -> str:
    if row.cost is None:
        return f"{row.workload}: {row.outcome}: {row.reason}"
    spread = row.cost.batch_s
    return f"{row.workload}: {spread.median:.3f} s per batch of {row.batch}, {row.cost.peak_rss_mb:.0f} MB"
