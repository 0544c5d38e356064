"""Whether the broker admits a link: its answer, what the answer means, and when to ask again."""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from typing import Final

from sparsyedge.edge.protocol.broker_refusal import ask_why, explain, retry_delay_s
from sparsyedge.edge.protocol.tls import Tls

__all__ = ["Admission", "Refusal", "membership_doubt"]

log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 5.0
SHORT_LIFE_S: Final = 30.0
SHORT_LIVES: Final = 3
"""If a broker ends this many connections in a row this early, two devices probably share a name."""
LOGIN_REFUSED: Final = (0x86, 0x87)


@dataclass(frozen=True)
class Refusal:
    """The broker's refusal of a CONNECT: the MQTT reason code and its text."""

    code: int
    text: str


def membership_doubt(refusal: Refusal) -> str:
    """What a refusal means for a member, and what to do."""
    return f"{refusal.text}; ask the operator whether this device is still a member of the fleet"


class Admission:
    """A link's standing with its broker. `before_retry` and `why` may block; nothing else does.

    The network thread reports here; the owner may read `trouble` and `refusal` at any time.
    """

    def __init__(self, host: str, port: int, tls: Tls | None) -> None:
        self.host = host
        self.port = port
        self.refusal: Refusal | None = None
        """The answer to the last CONNECT, if it was a refusal."""
        self.trouble: str | None = None
        """Why the broker refuses this link, if it says."""
        self._tls = tls
        self._turned_away: ssl.SSLError | bool = False
        """Whether the broker turned away the last attempt; the error itself, if known."""
        self._refusals = 0
        self._admitted_s = 0.0
        self._short_lives = 0

    @property
    def is_unknown(self) -> bool:
        """Whether the broker refused the name or the password."""
        return self.refusal is not None and self.refusal.code in LOGIN_REFUSED

    def why(self, error: OSError | None) -> str | None:
        """Why the broker turned us away; asks it once more if necessary. None if unknown."""
        if self._tls is None:
            return None
        if isinstance(error, ssl.SSLError) and (why := explain(error, self._tls, self.host)):
            return why
        return ask_why(self.host, self.port, self._tls, timeout_s=ASK_TIMEOUT_S)

    def note_failure(self, error: BaseException | None) -> None:
        """Note an attempt that failed before the broker could answer."""
        self._turned_away = error if isinstance(error, ssl.SSLError) else isinstance(error, ConnectionResetError)

    def note_disconnect(self, *, was_up: bool) -> None:
        """Note the end of a connection. If it was never up, the broker turned us away."""
        self._turned_away = not was_up

    def note_admitted(self) -> None:
        """Note that the broker let us in."""
        self._refusals, self.trouble, self.refusal, self._turned_away = 0, None, None, False
        self._admitted_s = time.monotonic()

    def before_retry(self) -> float:
        """Seconds to wait before the next attempt; grows with each refusal. Logs each new reason once."""
        why = self._why_refused()
        if why is not None and why != self.trouble:
            log.error("no connection to the broker at %s:%d: %s", self.host, self.port, why)
        self.trouble = why
        if why is None:
            return 0.0
        self._refusals += 1
        return retry_delay_s(self._refusals - 1)

    def _why_refused(self) -> str | None:
        refusal, self.refusal = self.refusal, None
        turned_away, self._turned_away = self._turned_away, False
        if refusal is not None:
            return membership_doubt(refusal)
        if isinstance(turned_away, ssl.SSLError):
            return self.why(turned_away)
        return self.why(None) if turned_away else None

    def note_loss(self, *, is_device: bool) -> str:
        """Note a lost connection and return a hint for the log: Mosquitto 2.0 does not say why it ended one."""
        is_short = time.monotonic() - self._admitted_s < SHORT_LIFE_S
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives < SHORT_LIVES or self._tls is None or not is_device:
            return ""
        return (
            f". It has ended {self._short_lives} connections in a row within {SHORT_LIFE_S:g} s: unless the broker has "
            f"a fault, another device has this one's identity; revoke it and enrol one of the two again"
        )
