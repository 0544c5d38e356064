"""What `status` and `devices` show of the live record: what a run waits for, and what its devices are doing."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from sparsyedge.coordinator.record.live import DeviceActivity, LiveReader, Present
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.text import duration

__all__ = ["describe_present", "look_at_present", "subject_of"]

FRESH_S = 10.0
"""A coordinator writes every second; closing a round may take longer."""


def look_at_present(run_dir: Path) -> tuple[Present | None, Mapping[str, DeviceActivity]]:
    """Return what coordinator and devices are doing; None if that is unknown, which is never an error."""
    try:
        reader = LiveReader.open(run_dir)
        if reader is None:
            return None, {}
        with closing(reader):
            return reader.present(), reader.devices()
    except (sqlite3.Error, SparsyedgeError):
        return None, {}


def describe_present(present: Present | None) -> list[str]:
    """Return what the run waits for as a line, with its age if it is old; nothing if it is unknown."""
    if present is None:
        return []
    age_s = time.time() - present.at
    return [present.sentence if age_s < FRESH_S else f"{present.sentence} (said {duration(age_s)} ago)"]


def subject_of(present: Present | None) -> str:
    """Return what the run waits for without figures: a step alone is no reason to print again."""
    return re.sub(r"\d+", "", present.sentence) if present is not None else ""
