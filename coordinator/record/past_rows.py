"""Reads what a run has on record of its devices, for cohorts that are chosen by it; a function of the record alone."""

from __future__ import annotations

import json
import sqlite3

from sparsyedge.coordinator.rounds.past import NOTHING, Past

__all__ = ["ensure_losses", "put_loss", "read_past"]

LOSSES = """
CREATE TABLE IF NOT EXISTS device_losses (
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    loss_rms REAL NOT NULL,
    PRIMARY KEY (round, device)
)
"""
"""Beside the schema, so that stores without it stay readable, here and by an older sparsyedge."""

LAST_REPORTS = """
SELECT l.device, u.samples, COALESCE(d.loss_rms, ABS(r.loss)) AS loss,
    (SELECT SUM(p.seconds) FROM phases p WHERE p.round = l.round AND p.device = l.device AND p.phase != 'upload')
        AS seconds,
    (SELECT p.joules FROM phases p WHERE p.round = l.round AND p.device = l.device AND p.phase = 'train') AS joules
FROM (SELECT device, MAX(round) AS round FROM reports GROUP BY device) l
JOIN reports r ON r.round = l.round AND r.device = l.device
JOIN updates u ON u.round = l.round AND u.device = l.device
LEFT JOIN device_losses d ON d.round = l.round AND d.device = l.device
"""
"""The upload is left out: how long it takes says more about the others that wanted to upload."""


def ensure_losses(db: sqlite3.Connection) -> None:
    """Make the table of losses if the store has none yet."""
    db.execute(LOSSES)


def put_loss(db: sqlite3.Connection, device: str, round_number: int, loss_rms: float) -> None:
    """Record the root mean square of a device's losses in a round."""
    db.execute("INSERT OR REPLACE INTO device_losses VALUES (?, ?, ?)", (round_number, device, loss_rms))


def read_past(db: sqlite3.Connection) -> dict[str, Past]:
    """Every device that was asked or has reported, as its last report has it."""
    asked: dict[str, int] = {}
    for row in db.execute("SELECT round, cohort FROM rounds WHERE closed_at IS NOT NULL ORDER BY round"):
        asked |= dict.fromkeys(json.loads(row["cohort"]), row["round"])
    past = {device: Past(last_asked=number) for device, number in asked.items()}
    for row in db.execute(LAST_REPORTS):
        device, samples, joules = row["device"], row["samples"], row["joules"]
        past[device] = Past(
            last_asked=past.get(device, NOTHING).last_asked,
            seconds=row["seconds"],
            joules_per_sample=None if joules is None else joules / max(1, samples),
            loss=row["loss"],
            samples=samples,
        )
    return past
