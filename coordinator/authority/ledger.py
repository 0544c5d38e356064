"""authority.sqlite: tokens (only their hashes), certificates, run keys, who follows a rotation, and refusals."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.record.database import closed_on_error, open_database
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.enrolment_messages import token_sha256

__all__ = ["MAX_TOKEN_LIFE_S", "MIN_TOKEN_LIFE_S", "TOKEN_LIFE_S", "EnrolledDevice", "Ledger", "Refusal", "Token"]

TOKEN_BYTES = 32
TOKEN_LIFE_S = 24 * 3600.0
"""How long a token is good unless somebody chooses otherwise."""
MIN_TOKEN_LIFE_S, MAX_TOKEN_LIFE_S = 600.0, 365 * 24 * 3600.0
BUSY_TIMEOUT_S = 10.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    sha256 TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    expires_at REAL NOT NULL,
    key_sha256 TEXT,
    certificate TEXT,
    life_s REAL NOT NULL DEFAULT 86400
);
CREATE TABLE IF NOT EXISTS certificates (
    serial TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    issued_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    revoked_at REAL,
    certificate TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS runs (
    serial INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    key TEXT NOT NULL,
    led INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS followers (
    device TEXT PRIMARY KEY,
    number INTEGER NOT NULL DEFAULT 0,
    seen_at REAL,
    left_at INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS refusals (
    device TEXT NOT NULL,
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (device, reason)
);
"""


@dataclass(frozen=True)
class Token:
    """A token on record; `key_sha256` and `certificate` are set once it is used."""

    device: str
    expires_at: float
    life_s: float
    """How long it was to be good when it was made."""
    key_sha256: str | None
    certificate: str | None


@dataclass(frozen=True, kw_only=True)
class EnrolledDevice:
    """A device, by its newest certificate."""

    device: str
    issued_at: float
    expires_at: float
    revoked_at: float | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A reason for refusing a device's enrolment, and how often it occurred."""

    device: str
    reason: str
    count: int


class Ledger:
    """The authority's records; every method is one transaction. Use it from one thread, like any SQLite connection."""

    def __init__(self, path: Path, *, timeout_s: float = BUSY_TIMEOUT_S) -> None:
        # Create the file before SQLite does, so it is private from the start.
        path.touch(mode=0o600)
        try:
            self._db = open_database(path, name="the ledger", timeout_s=timeout_s)
            with closed_on_error(self._db):
                self._db.executescript(SCHEMA)
                self._add_certificates()
                self._add_lives()
        except sqlite3.Error as error:
            raise SecurityError(f"cannot open the ledger {path}: {error}; restore it from a backup") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _add_certificates(self) -> None:
        """Upgrade an old ledger that stored certificates only with their tokens."""
        if self._keeps_certificates():
            return
        with self._db as db:
            db.execute("BEGIN IMMEDIATE")
            if self._keeps_certificates():  # another process was faster
                return
            db.execute("ALTER TABLE certificates ADD COLUMN certificate TEXT NOT NULL DEFAULT ''")
            db.execute(
                "UPDATE certificates SET certificate = COALESCE((SELECT t.certificate FROM tokens t "
                "WHERE t.device = certificates.device), '') WHERE revoked_at IS NULL"
            )

    def _keeps_certificates(self) -> bool:
        return any(row["name"] == "certificate" for row in self._db.execute("PRAGMA table_info(certificates)"))

    def _add_lives(self) -> None:
        """Upgrade an old ledger, whose tokens were all good for a day."""
        if self._keeps_lives():
            return
        with self._db as db:
            db.execute("BEGIN IMMEDIATE")
            if not self._keeps_lives():
                db.execute("ALTER TABLE tokens ADD COLUMN life_s REAL NOT NULL DEFAULT 86400")

    def _keeps_lives(self) -> bool:
        return any(row["name"] == "life_s" for row in self._db.execute("PRAGMA table_info(tokens)"))

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def issue_token(self, device: str, *, life_s: float = TOKEN_LIFE_S) -> tuple[str, float]:
        """Issue a token for one enrolment and return it with its expiry time; voids the device's earlier token."""
        token, expires_at = secrets.token_urlsafe(TOKEN_BYTES), time.time() + life_s
        with self._db as db:
            db.execute("DELETE FROM tokens WHERE device = ?", (device,))
            db.execute(
                "INSERT INTO tokens (sha256, device, expires_at, life_s) VALUES (?, ?, ?, ?)",
                (token_sha256(token), device, expires_at, life_s),
            )
        return token, expires_at

    def token(self, token: str) -> Token | None:
        """Look up a token; None if it was never issued or is void."""
        row = self._db.execute(
            "SELECT device, expires_at, life_s, key_sha256, certificate FROM tokens WHERE sha256 = ?",
            (token_sha256(token),),
        ).fetchone()
        return None if row is None else Token(**dict(row))

    def token_hashes(self) -> dict[str, str]:
        """Return the token hash of each device. Includes used tokens: their holders may have missed the reply."""
        return {row["device"]: row["sha256"] for row in self._db.execute("SELECT device, sha256 FROM tokens")}

    def void_token(self, device: str) -> None:
        """Delete the device's token."""
        with self._db as db:
            db.execute("DELETE FROM tokens WHERE device = ?", (device,))

    # ---- certificates ------------------------------------------------------------------------------------------------

    def enrol(self, token: str, *, key_sha256: str, certificate: str, serial: int, expires_at: float) -> bool:
        """Use up the token for this certificate, which replaces all earlier ones of the device.

        Returns False if another enrolment used the token first.
        """
        now_s = time.time()
        with self._db as db:
            used = db.execute(
                "UPDATE tokens SET key_sha256 = ?, certificate = ? WHERE sha256 = ? AND key_sha256 IS NULL",
                (key_sha256, certificate, token_sha256(token)),
            )
            if used.rowcount != 1:
                return False
            (device,) = db.execute("SELECT device FROM tokens WHERE sha256 = ?", (token_sha256(token),)).fetchone()
            db.execute(
                "UPDATE certificates SET revoked_at = ? WHERE device = ? AND revoked_at IS NULL", (now_s, device)
            )
            db.execute(
                "INSERT INTO certificates (serial, device, issued_at, expires_at, certificate) VALUES (?, ?, ?, ?, ?)",
                (f"{serial:x}", device, now_s, expires_at, certificate),
            )
            # It begins anew with what its file said.
            db.execute("UPDATE followers SET number = 0 WHERE device = ?", (device,))
        return True

    def certificate(self, device: str) -> str | None:
        """Return the device's newest certificate as PEM, revoked or not; None if none is on record."""
        row = self._db.execute(
            "SELECT certificate FROM certificates WHERE device = ? AND certificate != '' "
            "ORDER BY issued_at DESC LIMIT 1",
            (device,),
        ).fetchone()
        return None if row is None else str(row["certificate"])

    def was_member(self, device: str) -> bool:
        """Whether a certificate of the device has been revoked."""
        row = self._db.execute(
            "SELECT 1 FROM certificates WHERE device = ? AND revoked_at IS NOT NULL", (device,)
        ).fetchone()
        return row is not None

    def revoke(self, device: str) -> int:
        """Revoke all certificates of the device and void its tokens; returns how many certificates were valid."""
        with self._db as db:
            return self._revoke(db, device)

    def _revoke(self, db: sqlite3.Connection, device: str) -> int:
        db.execute("DELETE FROM tokens WHERE device = ?", (device,))
        done = db.execute(
            "UPDATE certificates SET revoked_at = ? WHERE device = ? AND revoked_at IS NULL", (time.time(), device)
        )
        return done.rowcount

    def revoked_serials(self) -> list[int]:
        """The serial numbers of all revoked certificates."""
        rows = self._db.execute("SELECT serial FROM certificates WHERE revoked_at IS NOT NULL ORDER BY revoked_at")
        return [int(row["serial"], 16) for row in rows]

    def valid_serials(self) -> list[tuple[str, str]]:
        """Return each device with the serial number, in hex, of its valid certificate; after a renewal it has two."""
        rows = self._db.execute(
            "SELECT device, serial FROM certificates WHERE revoked_at IS NULL ORDER BY device, rowid"
        )
        return [(row["device"], row["serial"]) for row in rows]

    def renew(self, device: str, *, certificate: str, serial: int, expires_at: float) -> bool:
        """Record a further certificate of a member; the present one stays valid. Returns False if it is revoked."""
        with self._db as db:
            done = db.execute(
                "INSERT INTO certificates (serial, device, issued_at, expires_at, certificate) "
                "SELECT ?, ?, ?, ?, ? WHERE EXISTS "
                "(SELECT 1 FROM certificates WHERE device = ? AND revoked_at IS NULL)",
                (f"{serial:x}", device, time.time(), expires_at, certificate, device),
            )
        return done.rowcount == 1

    def denied(self) -> list[str]:
        """Return the devices whose certificates are all revoked."""
        rows = self._db.execute(
            "SELECT device FROM certificates GROUP BY device HAVING COUNT(*) = COUNT(revoked_at) ORDER BY device"
        )
        return [row["device"] for row in rows]

    def members(self) -> list[EnrolledDevice]:
        """Every device that ever enrolled, by its newest certificate."""
        rows = self._db.execute(
            # Take the last row written, not the latest time: the clock may have been set back in between.
            "SELECT device, issued_at, expires_at, revoked_at FROM certificates "
            "WHERE rowid IN (SELECT MAX(rowid) FROM certificates GROUP BY device) ORDER BY device"
        )
        return [EnrolledDevice(**dict(row)) for row in rows]

    def knows(self, device: str) -> bool:
        """Whether the device has, or had, a token or a certificate."""
        row = self._db.execute(
            "SELECT 1 FROM tokens WHERE device = :device UNION SELECT 1 FROM certificates WHERE device = :device",
            {"device": device},
        ).fetchone()
        return row is not None

    def valid_certificate(self, device: str, serial: str) -> str | None:
        """Return the device's certificate with this serial number (hex) as PEM; None if revoked or not its own."""
        row = self._db.execute(
            "SELECT certificate FROM certificates WHERE device = ? AND serial = ? AND revoked_at IS NULL",
            (device, serial),
        ).fetchone()
        return str(row["certificate"]) if row is not None and row["certificate"] else None

    # ---- who follows a rotation --------------------------------------------------------------------------------------

    def note_seen(self, seen: Mapping[str, float]) -> None:
        """Record when devices were heard last, in Unix seconds; ignores names that nobody enrolled under."""
        with self._db as db:
            db.executemany(
                "INSERT INTO followers (device, seen_at) SELECT ?, ? "
                "WHERE EXISTS (SELECT 1 FROM certificates WHERE device = ?) "
                "ON CONFLICT (device) DO UPDATE SET seen_at = excluded.seen_at",
                [(device, at, device) for device, at in seen.items()],
            )

    def note_following(self, device: str, number: int) -> None:
        """Record that a device follows this statement about the fleet's authority."""
        with self._db as db:
            db.execute(
                "INSERT INTO followers (device, number) VALUES (?, ?) "
                "ON CONFLICT (device) DO UPDATE SET number = MAX(number, excluded.number)",
                (device, number),
            )

    def followers(self) -> dict[str, tuple[int, float | None]]:
        """Return the statement that each device follows, 0 for none, and when it was heard last."""
        rows = self._db.execute("SELECT device, number, seen_at FROM followers")
        return {row["device"]: (row["number"], row["seen_at"]) for row in rows}

    def forget_seen(self) -> None:
        """Forget when devices were heard: a new rotation begins."""
        with self._db as db:
            db.execute("UPDATE followers SET seen_at = NULL")

    def invited(self, now_s: float) -> list[str]:
        """Return the devices with a token that is good and not used."""
        rows = self._db.execute(
            "SELECT device FROM tokens WHERE key_sha256 IS NULL AND expires_at > ? ORDER BY device", (now_s,)
        )
        return [row["device"] for row in rows]

    def leave_behind(self, device: str, *, number: int) -> None:
        """Revoke a device that did not follow; once for each statement, since it may enrol again later."""
        with self._db as db:
            db.execute("INSERT INTO followers (device) VALUES (?) ON CONFLICT (device) DO NOTHING", (device,))
            left = db.execute(
                "UPDATE followers SET left_at = ? WHERE device = ? AND left_at < ?", (number, device, number)
            )
            if left.rowcount:
                self._revoke(db, device)

    # ---- run keys ----------------------------------------------------------------------------------------------------

    def next_run_serial(self, run: str, key: str) -> int:
        """Return a serial for a run's certificate, higher than all earlier ones.

        It is at least the current Unix time, so a ledger restored from an old backup never reuses serials that devices
        have seen.
        """
        with self._db as db:
            row = db.execute(
                "INSERT INTO runs (serial, run, key) SELECT MAX(COALESCE(MAX(serial), 0) + 1, ?), ?, ? FROM runs "
                "RETURNING serial",
                (int(time.time()), run, key),
            ).fetchone()
        return int(row["serial"])

    def note_led(self, serial: int, *, run: str, key: str) -> None:
        """Record that tasks were sent under this certificate, which another machine may have issued."""
        with self._db as db:
            db.execute(
                "INSERT INTO runs (serial, run, key, led) VALUES (?, ?, ?, 1) "
                "ON CONFLICT (serial) DO UPDATE SET led = 1",
                (serial, run, key),
            )

    def last_led(self) -> int:
        """The highest serial that devices may have seen; 0 before the first run."""
        return int(self._db.execute("SELECT COALESCE(MAX(serial), 0) FROM runs WHERE led").fetchone()[0])

    # ---- refusals ----------------------------------------------------------------------------------------------------

    def count_refusals(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Add to the refusal counts by device and reason.

        Unknown names all count as one device, since strangers can make up any number of them.
        """
        now_s = time.time()
        rows = [
            (device if self.knows(device) else "(unknown)", reason, count, now_s)
            for (device, reason), count in counts.items()
        ]
        with self._db as db:
            db.executemany(
                "INSERT INTO refusals (device, reason, count, at) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (device, reason) DO UPDATE SET count = count + excluded.count, at = excluded.at",
                rows,
            )

    def refusals(self) -> list[Refusal]:
        """Return all refusals, ordered by device."""
        rows = self._db.execute("SELECT device, reason, count FROM refusals ORDER BY device, reason")
        return [Refusal(**dict(row)) for row in rows]
