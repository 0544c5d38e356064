"""A link's subscriptions, and the requests that the broker has yet to answer. No I/O and no lock."""

from __future__ import annotations

import re
from typing import Final

from sparsyedge.edge.protocol.in_flight import InFlight

__all__ = ["Subscriptions"]

SILENCE_S: Final = 15.0
"""A broker that leaves a SUBSCRIBE unanswered and sends nothing for this long has forgotten the connection."""


class Subscriptions:
    """The patterns of one link. They outlive a connection; unanswered requests do not."""

    def __init__(self) -> None:
        self.patterns: list[str] = []
        self._covered: re.Pattern[str] | None = None
        self._as_published: set[str] = set()
        self._latest: set[str] = set()
        self._latest_only: re.Pattern[str] | None = None
        self._unanswered: InFlight[float] = InFlight()
        self._renewing: set[int] = set()
        self._heard_s = 0.0

    def add(self, pattern: str, *, as_published: bool, latest: bool = False) -> None:
        """Subscribe to a pattern on this connection and all later ones."""
        if pattern not in self.patterns:
            self.patterns.append(pattern)
            self._covered = None
        if as_published:
            self._as_published.add(pattern)
        if latest:
            self._latest.add(pattern)
            self._latest_only = re.compile("|".join(map(_expression, sorted(self._latest))), re.DOTALL)

    def remove(self, pattern: str) -> None:
        if pattern in self.patterns:
            self.patterns.remove(pattern)
            self._covered = None

    def cover(self, topic: str) -> bool:
        """Whether any of the patterns matches the topic."""
        if self._covered is None:
            # One expression for all: this is asked about every message.
            self._covered = re.compile("|".join(map(_expression, self.patterns)) or r"(?!)", re.DOTALL)
        return self._covered.fullmatch(topic) is not None

    def wants_latest_only(self, topic: str) -> bool:
        """Whether only the last message on the topic matters."""
        return self._latest_only is not None and self._latest_only.fullmatch(topic) is not None

    def is_as_published(self, pattern: str) -> bool:
        """Whether messages for the pattern keep their sender's retain flag."""
        return pattern in self._as_published

    def reset(self) -> None:
        """Forget the previous connection's requests."""
        self._unanswered.reset()

    def sent(self, packet: int, now_s: float) -> None:
        """Note a SUBSCRIBE that went to the client."""
        self._unanswered.sent(packet, now_s)

    def begin_renewal(self) -> bool:
        """Note that all patterns were requested again; True if the broker has already answered every request."""
        self._renewing = self._unanswered.ids
        return not self._renewing

    def answered(self, packet: int) -> bool:
        """Note a SUBACK; True if it completes the renewal."""
        self._unanswered.answered(packet)
        completes = self._renewing == {packet}
        self._renewing.discard(packet)
        return completes

    def heard(self, now_s: float) -> None:
        """Note that the broker sent something."""
        self._heard_s = now_s

    def take_silence(self, now_s: float) -> bool:
        """Whether the broker has forgotten the connection; reports it once for the requests so far."""
        asked_s = min(self._unanswered.facts, default=None)
        if asked_s is None or now_s - max(asked_s, self._heard_s) < SILENCE_S:
            return False
        self._unanswered.forget_sent()
        return True


def _expression(pattern: str) -> str:
    """A regular expression for the topics of an MQTT pattern: `+` is one level, `#` all that follow."""
    # A broker's own topics, which begin with a dollar sign, need to be named.
    start = r"(?!\$)" if pattern.startswith(("+", "#")) else ""
    if pattern == "#":
        return f"{start}.*"
    levels = ["[^/]*" if level == "+" else re.escape(level) for level in pattern.removesuffix("/#").split("/")]
    return start + "/".join(levels) + ("(?:/.*)?" if pattern.endswith("/#") else "")
