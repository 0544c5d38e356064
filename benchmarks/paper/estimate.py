"""Core-hours of an experiment before anybody spends them: a few steps of each method, times all steps of its runs.

A step's time does not depend on what the samples show, so the samples are random and no data set is needed.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.paper.experiments import Row
from sparsyedge.benchmarks.paper.settings import Setting
from sparsyedge.benchmarks.paper.starts import BIRDS, HALVES
from sparsyedge.edge.data import Samples
from sparsyedge.edge.data.form import Form
from sparsyedge.edge.data.loaders import DATASETS
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import method_of
from sparsyedge.edge.model.training import TrainingConfig, training_of
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.local_update import finish_update, step_rule
from sparsyedge.edge.training.session_holder import SessionHolder
from sparsyedge.edge.training.trainer import LocalJob, train

__all__ = ["Estimate", "as_document", "core_hours", "estimate", "print_estimates"]

SIZES = {
    "digits": (1_437, 360),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "speech_commands": (84_843, 11_005),
    BIRDS: (5_994, 5_794),
    **dict.fromkeys(HALVES, (25_000, 5_000)),
}
"""Samples to train with and to test with."""
STEPS = 4
REPEATS = 4
EVALUATED = 100
# Small, so that random labels do not make the loss infinite.
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Costs:
    """Seconds on one core of this machine."""

    dense_step_s: float
    """In round 1, which begins with dense weights."""
    step_s: float
    """In later rounds."""
    evaluation_s: float
    """Per sample."""


@dataclass(frozen=True)
class Estimate:
    """What a row costs; `core_hours` for all of its seeds."""

    label: str
    costs: Costs
    steps: int
    """Of one run."""
    runs: int
    core_hours: float


def estimate(rows: Sequence[tuple[Row, Sequence[Setting]]], note: Callable[[str], None]) -> list[Estimate]:
    """The rows' costs; rows whose steps are the same share one measurement."""
    measured: dict[object, Costs] = {}
    found = []
    for row, settings in rows:
        first = settings[0]
        same = (first.dataset, first.model, first.width, first.method, first.training, first.batch_size)
        if same not in measured:
            note(f"timing {row.label}")
            measured[same] = _measure(first)
        steps = _steps_per_round(first) * first.rounds
        hours = len(settings) * core_hours(first, measured[same])
        found.append(Estimate(row.label, measured[same], steps, len(settings), hours))
    return found


def core_hours(setting: Setting, costs: Costs) -> float:
    """Of one run: the steps of all devices in all rounds, and the evaluations."""
    steps = _steps_per_round(setting)
    evaluations = math.ceil(setting.rounds / setting.eval_every)
    seconds = steps * (costs.dense_step_s + (setting.rounds - 1) * costs.step_s)
    return (seconds + evaluations * SIZES[setting.dataset][1] * costs.evaluation_s) / 3600


def _steps_per_round(setting: Setting) -> int:
    share = SIZES[setting.dataset][0] / setting.devices
    return setting.cohort * setting.epochs * math.ceil(share / setting.batch_size)


def _measure(setting: Setting) -> Costs:
    with tempfile.TemporaryDirectory(prefix="sparsyedge-") as folder:
        form = _form(setting.dataset)
        artifacts = _export(setting, form, Path(folder) / "artifacts")
        holder = SessionHolder(threads=1, runtime="stock")  # as the runs' devices train
        holder.put(artifacts, sha256_file(artifacts.directory / MANIFEST_NAME))
        initial = read_initial_state(artifacts)
        dense_s, trained = _step_s(holder, None, artifacts, setting, form, round_number=1)
        method, prunable = artifacts.manifest.method, artifacts.manifest.prunable
        model = finish_update(
            method,
            trained,
            prunable=prunable,
            sparsity=method.sparsity,
            start=initial,
            positions=artifacts.manifest.positions,
        )
        step_s, _ = _step_s(holder, model, artifacts, setting, form, round_number=2)
        evaluation = EvalSession(artifacts, threads=1)
        evaluation.load(model)
        x, y = _samples(form, EVALUATED).batch(np.arange(EVALUATED))
        return Costs(dense_s, step_s, _fastest_s(lambda: evaluation.evaluate(x, y)) / EVALUATED)


def _step_s(
    holder: SessionHolder, model: State | None, artifacts: Artifacts, setting: Setting, form: Form, *, round_number: int
) -> tuple[float, State]:
    """The seconds of a step with what the method does between steps, and the model after some."""
    manifest = artifacts.manifest
    session = holder.session(model, round_number=round_number)
    job = LocalJob("device-000", round_number, setting.seed, 1, setting.batch_size, LEARNING_RATE, manifest.training)
    rule = step_rule(manifest.method, session, manifest.prunable, job)
    samples = _samples(form, STEPS * setting.batch_size)
    return _fastest_s(lambda: train(session, samples, job, before_step=rule)) / STEPS, session.state()


def _fastest_s(work: Callable[[], object]) -> float:
    """The least processor time of a few, so that other work on the machine hardly counts."""
    taken = []
    for _ in range(REPEATS):
        start_s = time.process_time()
        work()
        taken.append(time.process_time() - start_s)
    return min(taken)


def _export(setting: Setting, form: Form, folder: Path) -> Artifacts:
    # Imported here: the other options of the command need no torch.
    from sparsyedge.export.checked_build import export_model
    from sparsyedge.export.model_spec import ModelSpec
    from sparsyedge.export.models import model_for

    spec = ModelSpec.for_data(setting.model or model_for(setting.dataset), setting.width, form)
    training = training_of(setting.training or TrainingConfig())
    artifacts, _ = export_model(spec, method_of(setting.method), folder, seed=setting.seed, training=training)
    return artifacts


def _form(dataset: str) -> Form:
    if dataset in HALVES:
        return Form((3, 32, 32), len(HALVES[dataset]))
    return Form((3, 224, 224), 200) if dataset == BIRDS else DATASETS[dataset].form


def _samples(form: Form, count: int) -> Samples:
    generator = np.random.default_rng(0)
    x = (100 * generator.random((count, *form.shape))).astype(form.sample_type)
    return Samples(x, generator.integers(0, form.classes, count))


def as_document(table: str, scale: str, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """The estimates for JSON."""
    rows = [
        {
            "label": each.label,
            "dense_step_ms": 1e3 * each.costs.dense_step_s,
            "step_ms": 1e3 * each.costs.step_s,
            "evaluation_ms": 1e3 * each.costs.evaluation_s,
            "steps": each.steps,
            "runs": each.runs,
            "core_hours": each.core_hours,
        }
        for each in estimates
    ]
    total = sum(each.core_hours for each in estimates)
    return {"table": table, "scale": scale, "machine": machine(), "rows": rows, "core_hours": total}


def print_estimates(console: Console, estimates: Sequence[Estimate]) -> None:
    """Print a table, with the machine that the figures are of."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for heading in ("step ms,\nround 1", "step ms,\nlater", "test ms,\nsample", "steps\na run", "runs", "core-\nhours"):
        table.add_column(heading, justify="right")
    for each in estimates:
        figures = (1e3 * each.costs.dense_step_s, 1e3 * each.costs.step_s, 1e3 * each.costs.evaluation_s)
        cells = [f"{figure:.1f}" for figure in figures]
        table.add_row(each.label, *cells, f"{each.steps:,}", str(each.runs), f"{each.core_hours:,.1f}")
    table.add_row("all", "", "", "", "", "", f"{sum(each.core_hours for each in estimates):,.1f}")
    console.print(table)
    here = machine()
    console.print(f"one core of {here['cpu']} ({here['cores']} cores), one thread, random samples", highlight=False)
    console.print("not counted: averaging, frames and metrics on the coordinator, and pretraining", highlight=False)
