"""Rows about devices' evaluations and data in run.sqlite; store.py decides when they are durable."""

from __future__ import annotations

import sqlite3
import time

from msgspec import UNSET, UnsetType

from sparsyedge.edge.protocol.messages import DataNote, LocalEvaluation, Score

__all__ = ["put_data_note", "put_evaluation"]


def put_evaluation(
    db: sqlite3.Connection,
    device: str,
    found: LocalEvaluation,
    *,
    round_number: int,
    number: int = 0,
    seconds: float | None = None,
    joules: float | None = None,
) -> None:
    """Write what a device found in a training round, or in the evaluation round with this number."""
    db.execute(
        "INSERT OR REPLACE INTO device_evaluations (round, device, evaluation, samples, held_out, loss, accuracy, "
        "own_loss, own_accuracy, seconds, joules, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            round_number,
            device,
            number,
            found.samples,
            found.held_out,
            *_columns(found.before),
            *_columns(found.after),
            seconds,
            joules,
            time.time(),
        ),
    )


def _columns(score: Score | UnsetType) -> tuple[float | None, float | None]:
    if score is UNSET:
        return None, None
    return score.loss, None if score.accuracy is UNSET else score.accuracy


def put_data_note(db: sqlite3.Connection, device: str, round_number: int, note: DataNote) -> None:
    """Write how a device's data had changed in a round, with the number of samples that it last announced."""
    counts = (note.added, note.changed, note.removed, note.broken)
    db.execute(
        "INSERT OR REPLACE INTO data_notes (round, device, samples, added, changed, removed, broken, trouble, at) "
        "VALUES (?, ?, COALESCE((SELECT samples FROM devices WHERE device = ?), 0), ?, ?, ?, ?, ?, ?)",
        (round_number, device, device, *counts, note.trouble, time.time()),
    )
