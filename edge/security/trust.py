"""Which tasks a device of a secured fleet accepts: those by a certified run key, and none older than the last it saw.

The device remembers the highest certificate and round it has seen, in one small file that survives restarts.
Nothing expires: boards have no clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import RoundNumber, RunCertificate
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.run_seal import check_certificate, check_seal
from sparsyedge.edge.storage import write_atomically

__all__ = ["Trust"]

log = logging.getLogger(__name__)

LOG_AGAIN_S = 60.0
"""A forger can send many tasks; we log at most one line a minute."""


class _Claim(msgspec.Struct, frozen=True):
    """The part of a message that we read before we know who wrote it."""

    run: Identifier
    round: RoundNumber
    certificate: RunCertificate


class _Seen(msgspec.Struct, frozen=True):
    """The latest accepted task. Later certificates come with their own rounds, so one record is enough."""

    serial: int = 0
    key: str = ""
    round: int = 0


# Created before any thread starts: see edge/protocol/messages.py.
_CLAIM_DECODER: msgspec.json.Decoder[_Claim] = msgspec.json.Decoder(_Claim)
_SEEN_DECODER: msgspec.json.Decoder[_Seen] = msgspec.json.Decoder(_Seen)


class Trust:
    """Tells the operator's tasks from forged and replayed ones, and counts the latter."""

    def __init__(
        self, keys: PinnedKeys, *, fleet: str, path: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.refused = 0
        """Tasks refused since the start."""
        self._reason = ""
        self._keys = keys
        self._fleet = fleet
        self._path = path
        self._clock = clock
        self._silent_until_s = 0.0
        self._checked: tuple[RunCertificate, tuple[str, ...]] | None = None
        """The last certificate that passed the check, and the keys that counted then."""
        self._seen = self._load()

    @property
    def alarm(self) -> str:
        """A report of refused tasks for the coordinator; empty if there were none."""
        if not self.refused:
            return ""
        return f"refused {self.refused} forged or replayed tasks since its start; the last one: {self._reason}"

    def believes(self, payload: bytes) -> bool:
        """Whether a message on the task's topic is the operator's current task; counts it if not."""
        try:
            self._check(payload)
        except SecurityError as error:
            self._refuse(str(error))
            return False
        return True

    def _check(self, payload: bytes) -> None:
        try:
            claim = _CLAIM_DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SecurityError("it names no certified run key") from error
        certificate, seen = claim.certificate, self._seen
        if certificate.run != claim.run:
            raise SecurityError(f"it is for run {claim.run}, its run key is certified for run {certificate.run}")
        is_same = (certificate.serial, certificate.key) == (seen.serial, seen.key)
        if is_same and claim.round < seen.round:
            raise SecurityError(f"round {claim.round} of run {claim.run} is over: round {seen.round} was seen")
        if not is_same and certificate.serial <= seen.serial:
            raise SecurityError(
                f"run {claim.run} is over: its certificate has serial {certificate.serial}, {seen.serial} was seen; if "
                f"it is to go on, certify it anew with `sparsyedge coordinator sign --run RUN.toml`"
            )
        self._check_certificate(certificate)
        check_seal(payload, certificate.key)
        self._remember(_Seen(certificate.serial, certificate.key, claim.round))

    def vouches_for(self, certificate: RunCertificate | None) -> bool:
        """Whether a key that counts now certifies this run key."""
        try:
            if certificate is None:
                return False
            self._check_certificate(certificate)
        except SecurityError:
            return False
        return True

    def _check_certificate(self, certificate: RunCertificate) -> None:
        if (certificate, self._keys.present) != self._checked:
            self._keys.check(lambda key: check_certificate(certificate, fleet=self._fleet, signing_key=key))
            self._checked = certificate, self._keys.present

    def _remember(self, seen: _Seen) -> None:
        if seen == self._seen:
            return
        self._seen = seen
        try:
            write_atomically(self._path, msgspec.json.encode(seen), private=True)
        except OSError as error:
            # A device that cannot write cannot train either, and will say so when it tries.
            log.warning("cannot note round %d in %s: %s", seen.round, self._path, error)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        self._reason = reason
        now_s = self._clock()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + LOG_AGAIN_S
            log.warning("refused a task (%d so far) and kept the last good one: %s", self.refused, reason)

    def _load(self) -> _Seen:
        try:
            return _SEEN_DECODER.decode(self._path.read_bytes())
        except FileNotFoundError:
            return _Seen()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("cannot read %s (%s): tasks of earlier rounds may pass for new ones once", self._path, error)
            return _Seen()
