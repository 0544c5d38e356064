"""live.sqlite: what a run is doing right now, for pages, metrics and terminals.

It is apart from run.sqlite because it may be lost: nothing in it is synced to disk, and a coordinator that starts
begins a new one.
"""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

from sparsyedge.coordinator.record.database import closed_on_error, open_database
from sparsyedge.edge.errors import RunError

__all__ = ["LIVE_NAME", "DeviceActivity", "LiveReader", "LiveRecord", "Present"]

LIVE_NAME = "live.sqlite"
LIVE_VERSION = 1
BUSY_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DeviceActivity:
    """What a device said last about its present job; None for what it did not say."""

    device: str
    round: int
    phase: str
    step: int
    """Steps of the job that are done; 0 outside of training."""
    steps: int
    """All steps of the job; 0 if not known."""
    loss: float | None
    temperature_c: float | None
    battery_percent: float | None
    at: float
    """When the coordinator heard it, in Unix seconds."""


@dataclass(frozen=True, kw_only=True)
class Present:
    """What the coordinator is doing, and what that costs it."""

    round: int
    stage: str
    """`waiting`, `open`, `closing`, `paused` or `over`."""
    sentence: str
    """Whom or what the run waits for and until when, in words."""
    until: float | None
    """When it stops waiting, in Unix seconds; None if it waits without a limit."""
    online: int
    accepted: int
    cohort: int
    uploads: int
    """Updates being uploaded."""
    offers_waiting: int
    """Devices that wait for a place to upload."""
    inbox_messages: int
    """Messages that arrived and were not handled yet."""
    cpu_s: float
    """Processor seconds of the coordinator and its workers since they started."""
    rss_bytes: int
    at: float


SCHEMA = f"""
CREATE TABLE devices ({", ".join(each.name for each in fields(DeviceActivity))}, PRIMARY KEY (device)) WITHOUT ROWID;
CREATE TABLE present ({", ".join(each.name for each in fields(Present))});
PRAGMA user_version = {LIVE_VERSION};
"""


class LiveRecord:
    """The writing half; `flush` shows everything noted since the last one."""

    def __init__(self, run_dir: Path) -> None:
        """Begin a new file in the run's directory."""
        self._path = run_dir / LIVE_NAME
        self._noted: dict[str, DeviceActivity | None] = {}
        """The last word of each device since the last flush; None for one that left."""
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self._path.touch(mode=0o600)
        self._db = open_database(self._path, name="the live record", timeout_s=BUSY_TIMEOUT_S, any_thread=True)
        with closed_on_error(self._db):
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.executescript(SCHEMA)

    def note(self, activity: DeviceActivity) -> None:
        """Remember what a device is doing; only its last word counts."""
        self._noted[activity.device] = activity

    def forget(self, device: str) -> None:
        """Remove a device that left, with the next flush."""
        self._noted[device] = None

    def flush(self, present: Present) -> None:
        """Write what was noted, and what the coordinator itself is doing."""
        noted, self._noted = self._noted, {}
        with self._db as db:
            db.executemany(
                f"INSERT OR REPLACE INTO devices VALUES ({_marks(DeviceActivity)})",
                # Not `astuple`: it copies every value, and there may be thousands of devices.
                [tuple(vars(activity).values()) for activity in noted.values() if activity is not None],
            )
            gone = [(device,) for device, activity in noted.items() if activity is None]
            db.executemany("DELETE FROM devices WHERE device = ?", gone)
            db.execute("DELETE FROM present")
            db.execute(f"INSERT INTO present VALUES ({_marks(Present)})", astuple(present))

    def close(self) -> None:
        """Close the file; it stays, and readers see the last flush."""
        self._db.close()


class LiveReader:
    """The reading half."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, name="the live record", timeout_s=BUSY_TIMEOUT_S, any_thread=True)

    @classmethod
    def open(cls, run_dir: Path) -> Self | None:
        """Open the live record of a run; None if no coordinator has begun one that this version can read."""
        path = run_dir / LIVE_NAME
        try:
            reader = cls(path)
        except sqlite3.OperationalError:
            return None
        with closed_on_error(reader._db):
            try:
                version = reader._db.execute("PRAGMA user_version").fetchone()[0]
            except sqlite3.Error as error:
                raise RunError(
                    f"cannot read {path}: {error}; the next start of the coordinator makes it anew"
                ) from error
        if version == LIVE_VERSION:
            return reader
        reader.close()
        return None

    def version(self) -> int:
        """Return a number that changes when the leader writes; costs next to nothing."""
        number: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return number

    def present(self) -> Present | None:
        """Return what the coordinator is doing; None before its first word."""
        row = self._db.execute("SELECT * FROM present").fetchone()
        return Present(**_named(row)) if row is not None else None

    def devices(self) -> dict[str, DeviceActivity]:
        """Return what each device said last, by name."""
        rows = self._db.execute("SELECT * FROM devices ORDER BY device")
        return {row["device"]: DeviceActivity(**_named(row)) for row in rows}

    def close(self) -> None:
        self._db.close()


def _marks(kind: type[DeviceActivity] | type[Present]) -> str:
    return ", ".join("?" * len(fields(kind)))


def _named(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] for name in row.keys()}  # noqa: SIM118 - a Row iterates over its values
