"""authority.sqlite: which tokens, certificates and refusals there are. Of a token, only its hash is stored."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.database import open_database
from sparsyedge.edge.enrolment import token_sha256
from sparsyedge.edge.errors import SecurityError

__all__ = ["TOKEN_LIFE_S", "Ledger", "Member", "Refusal", "Token"]

TOKEN_BYTES = 32
TOKEN_LIFE_S = 24 * 3600.0
BUSY_TIMEOUT_S = 10.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    sha256 TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    expires_at REAL NOT NULL,
    key_sha256 TEXT,
    certificate TEXT
);
CREATE TABLE IF NOT EXISTS certificates (
    serial TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    issued_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    revoked_at REAL
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
    """What is known of a token that somebody showed; `key_sha256` and `certificate` once it was used."""

    device: str
    expires_at: float
    key_sha256: str | None
    certificate: str | None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A device, by its newest certificate."""

    device: str
    issued_at: float
    expires_at: float
    revoked_at: float | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An enrolment that was refused, and how often."""

    device: str
    reason: str
    count: int


class Ledger:
    """The authority's memory; every method is one transaction. Of one thread, as SQLite's connections are."""

    def __init__(self, path: Path, *, timeout_s: float = BUSY_TIMEOUT_S) -> None:
        # Before SQLite makes it: the file is private from its first moment on.
        path.touch(mode=0o600)
        try:
            self._db = open_database(path, name="the ledger", timeout_s=timeout_s)
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise SecurityError(f"cannot open the ledger {path}: {error}; restore it from a backup") from error

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def issue_token(self, device: str) -> tuple[str, float]:
        """A new token for one enrolment of the device, and when it expires; one that it had before is void."""
        token, expires_at = secrets.token_urlsafe(TOKEN_BYTES), time.time() + TOKEN_LIFE_S
        with self._db as db:
            db.execute("DELETE FROM tokens WHERE device = ?", (device,))
            db.execute(
                "INSERT INTO tokens (sha256, device, expires_at) VALUES (?, ?, ?)",
                (token_sha256(token), device, expires_at),
            )
        return token, expires_at

    def token(self, token: str) -> Token | None:
        """What is known of it; None for one that was never issued, or is void."""
        row = self._db.execute(
            "SELECT device, expires_at, key_sha256, certificate FROM tokens WHERE sha256 = ?", (token_sha256(token),)
        ).fetchone()
        return None if row is None else Token(**dict(row))

    def token_hashes(self) -> dict[str, str]:
        """The hash of every device's token, those that were used included: their holders may have lost the answer."""
        return {row["device"]: row["sha256"] for row in self._db.execute("SELECT device, sha256 FROM tokens")}

    def void_token(self, device: str) -> None:
        """Make the device's token worthless."""
        with self._db as db:
            db.execute("DELETE FROM tokens WHERE device = ?", (device,))

    # ---- certificates ------------------------------------------------------------------------------------------------

    def enrol(self, token: str, *, key_sha256: str, certificate: str, serial: int, expires_at: float) -> bool:
        """Use the token up for this certificate, which takes the place of all that the device had before.

        False where another enrolment was faster.
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
                "INSERT INTO certificates (serial, device, issued_at, expires_at) VALUES (?, ?, ?, ?)",
                (f"{serial:x}", device, now_s, expires_at),
            )
        return True

    def was_member(self, device: str) -> bool:
        """Whether a certificate of the device has been revoked."""
        row = self._db.execute(
            "SELECT 1 FROM certificates WHERE device = ? AND revoked_at IS NOT NULL", (device,)
        ).fetchone()
        return row is not None

    def revoke(self, device: str) -> int:
        """Revoke all certificates of the device and void its tokens; returns how many certificates were valid."""
        with self._db as db:
            db.execute("DELETE FROM tokens WHERE device = ?", (device,))
            done = db.execute(
                "UPDATE certificates SET revoked_at = ? WHERE device = ? AND revoked_at IS NULL", (time.time(), device)
            )
            return done.rowcount

    def revoked_serials(self) -> list[int]:
        """The serial numbers of all revoked certificates."""
        rows = self._db.execute("SELECT serial FROM certificates WHERE revoked_at IS NOT NULL ORDER BY revoked_at")
        return [int(row["serial"], 16) for row in rows]

    def denied(self) -> list[str]:
        """The devices that have been members and have no valid certificate any more."""
        rows = self._db.execute(
            "SELECT device FROM certificates GROUP BY device HAVING COUNT(*) = COUNT(revoked_at) ORDER BY device"
        )
        return [row["device"] for row in rows]

    def members(self) -> list[Member]:
        """Every device that ever enrolled, by its newest certificate."""
        rows = self._db.execute(
            # The last one written, not the one of the latest time: the clock may have been set back in between.
            "SELECT device, issued_at, expires_at, revoked_at FROM certificates "
            "WHERE rowid IN (SELECT MAX(rowid) FROM certificates GROUP BY device) ORDER BY device"
        )
        return [Member(**dict(row)) for row in rows]

    def knows(self, device: str) -> bool:
        """Whether the device has, or had, a token or a certificate."""
        row = self._db.execute(
            "SELECT 1 FROM tokens WHERE device = :device UNION SELECT 1 FROM certificates WHERE device = :device",
            {"device": device},
        ).fetchone()
        return row is not None

    # ---- refusals ----------------------------------------------------------------------------------------------------

    def count_refusals(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Add to how often enrolments were refused, by device and reason.

        Names that nobody issued are counted as one: strangers choose them.
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
        """What was refused, in order of devices."""
        rows = self._db.execute("SELECT device, reason, count FROM refusals ORDER BY device, reason")
        return [Refusal(**dict(row)) for row in rows]
