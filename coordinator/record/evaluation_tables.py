"""Evaluations on devices as tables for an 80-column terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from sparsyedge.coordinator.record.device_evaluations import (
    GLOBAL_PREFIX,
    PERSONAL_PREFIX,
    DeviceEvaluation,
    EvaluationRound,
    shown,
)
from sparsyedge.coordinator.record.tables import compact_table

__all__ = ["NOTHING", "describe_evaluation", "device_evaluation_table", "evaluation_table", "score_text"]

NOTHING = ("-", "-", "-")


def describe_evaluation(found: EvaluationRound) -> str:
    """An evaluation round and what it came to, in one line."""
    when = f"after round {found.round}" if found.round else "before round 1"
    line = f"evaluation {found.number} of model {found.model_id[:12]}, {when}"
    if found.ended_at is None:
        return f"{line}: under way, {found.asked} devices were asked"
    texts = shown(found.figures, GLOBAL_PREFIX)
    if texts is None:
        return f"{line}: no samples to evaluate on ({found.asked} devices were asked)"
    kind = "accuracy" if f"{GLOBAL_PREFIX}accuracy" in found.figures else "RMSE"
    mean, worst, spread = texts
    return (
        f"{line}: {kind} {mean} (worst tenth {worst}, deviation {spread}), loss "
        f"{found.figures[f'{GLOBAL_PREFIX}loss']:.4f}; {found.figures['eval_samples']:.0f} samples on "
        f"{found.figures['eval_devices']:.0f} of {found.asked} devices"
    )


def evaluation_table(rounds: Mapping[int, Mapping[str, float]]) -> Table:
    """One row per training round: the model it began with, and the devices' own models after it."""
    title = "on devices (personal: devices' own models after the round)"
    headings = ("loss", "score", "worst", "std", "personal", "worst", "std")
    table = compact_table(title, "round", "devices", "samples", *headings)
    for number, figures in rounds.items():
        table.add_row(
            str(number),
            f"{figures['eval_devices']:.0f}",
            f"{figures['eval_samples']:.0f}",
            f"{figures[f'{GLOBAL_PREFIX}loss']:.4g}",
            *(shown(figures, GLOBAL_PREFIX) or NOTHING),
            *(shown(figures, PERSONAL_PREFIX) or NOTHING),
        )
    return table


def device_evaluation_table(found: Sequence[DeviceEvaluation]) -> Table:
    """One row per device of an evaluation round."""
    table = compact_table("", "device", "samples", "held out", "loss", "score", "seconds")
    for each in found:
        table.add_row(
            each.device,
            str(each.samples),
            "yes" if each.held_out else "no",
            "-" if each.loss is None else f"{each.loss:.4f}",
            score_text(each.loss, each.accuracy),
            "-" if each.seconds is None else f"{each.seconds:.1f}",
        )
    return table


def score_text(loss: float | None, accuracy: float | None) -> str:
    """An accuracy, or the root mean squared error of a regression; a dash for neither."""
    if accuracy is not None:
        return f"{accuracy:.1%}"
    return "-" if loss is None else f"{math.sqrt(loss):.4g}"
