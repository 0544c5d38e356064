"""Who is logged in: a token opens a session, and wrong ones slow their sender down and are counted.

On loopback everybody who reaches the page is let in, and what is left of this is the CSRF token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sparsyedge.coordinator.authority.page_access import TOKEN_NAME, page_token_sha256
from sparsyedge.edge.errors import SecurityError

__all__ = ["SESSION_S", "Attempts", "Login", "Session"]

log = logging.getLogger(__name__)

SESSION_S = 12 * 3600.0
MAX_SESSIONS = 256
MAX_ADDRESSES = 1024
FREE_ATTEMPTS = 3
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
FORGET_S = 3600.0


@dataclass
class Session:
    """One logged-in browser."""

    csrf: str
    token_sha256: str
    until: float


@dataclass
class _Record:
    wrong: int = 0
    next_at: float = 0.0


@dataclass
class Attempts:
    """Wrong tokens by address, in a table that cannot grow: strangers beyond it share one record."""

    clock: Callable[[], float] = time.monotonic
    wrong_in_all: int = 0
    _records: OrderedDict[str, _Record] = field(default_factory=OrderedDict)
    _others: _Record = field(default_factory=_Record)

    def wait_s(self, address: str) -> float:
        """How long this address must wait before its next token is looked at; 0 if it need not."""
        record = self._find(address)
        return max(0.0, record.next_at - self.clock()) if record else 0.0

    def note_wrong(self, address: str) -> None:
        """Count a wrong token, or one that came too early."""
        self.wrong_in_all += 1
        now, record = self.clock(), self._find(address) or self._new(address)
        if (key := _network(address)) in self._records:
            self._records.move_to_end(key)
        if now - record.next_at > FORGET_S:
            record.wrong = 0
        early = record.next_at > now
        record.wrong += 1
        if record.wrong > FREE_ATTEMPTS and not early:
            wait_s = FIRST_WAIT_S * 2.0 ** min(record.wrong - FREE_ATTEMPTS - 1, 20)
            record.next_at = now + min(LONGEST_WAIT_S, wait_s)
        elif not early:
            record.next_at = now
        if self.wrong_in_all & (self.wrong_in_all - 1) == 0:
            # At powers of two alone: whoever guesses must not fill the disk.
            log.warning("%d wrong tokens for the page so far, the last from %s", self.wrong_in_all, address)

    def forgive(self, address: str) -> None:
        """Forget what an address got wrong: it knows the token."""
        self._records.pop(_network(address), None)

    def _find(self, address: str) -> _Record | None:
        key = _network(address)
        if key in self._records:
            return self._records[key]
        return self._others if len(self._records) >= MAX_ADDRESSES and not self._drop_old() else None

    def _new(self, address: str) -> _Record:
        return self._records.setdefault(_network(address), _Record())

    def _drop_old(self) -> bool:
        """Make room if the oldest record is forgotten by now."""
        key, record = next(iter(self._records.items()))
        if self.clock() - record.next_at <= FORGET_S:
            return False
        del self._records[key]
        return True


class Login:
    """Sessions of this process. They end with it, with a new token, and after twelve hours."""

    def __init__(self, authority: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Without an authority everybody is let in."""
        self._authority = authority
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._everybody = Session(secrets.token_urlsafe(32), "", float("inf"))
        self._token_read: tuple[int, str] = (-1, "")
        self.attempts = Attempts(clock)

    @property
    def is_needed(self) -> bool:
        """Whether a token is asked for."""
        return self._authority is not None

    def session(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None if there is none, or if it has ended."""
        if self._authority is None:
            return self._everybody
        session = self._sessions.get(_sha256(cookie)) if cookie else None
        if session is None or session.until < self._clock() or session.token_sha256 != self._good_sha256():
            return None
        return session

    def is_good(self, token: str) -> bool:
        """Whether this is the fleet's token; takes the same time for every wrong one."""
        good = self._good_sha256()
        return bool(good) and hmac.compare_digest(_sha256(token), good)

    def enter(self) -> str:
        """Begin a session and return its cookie."""
        cookie = secrets.token_urlsafe(32)
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        until = self._clock() + SESSION_S
        self._sessions[_sha256(cookie)] = Session(secrets.token_urlsafe(32), self._good_sha256(), until)
        return cookie

    def leave(self, cookie: str | None) -> None:
        """End a session."""
        self._sessions.pop(_sha256(cookie or ""), None)

    def _good_sha256(self) -> str:
        """The hash of the token that is good now; read again when its file has changed."""
        assert self._authority is not None
        try:
            changed = (self._authority / TOKEN_NAME).stat().st_mtime_ns
            if self._token_read[0] != changed:
                self._token_read = changed, page_token_sha256(self._authority)
        except (OSError, SecurityError):
            self._token_read = -1, ""
        return self._token_read[1]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _network(address: str) -> str:
    """An IPv6 host has a whole network of addresses to guess from, so its network counts."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
