"""Answers newcomers: issues a certificate for a valid token; refuses and counts everything else.

Runs in its own thread beside every `coordinator run`, and alone as `coordinator enrol`. If several run for one fleet,
only one works at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sparsyedge.coordinator.authority import certificates, mosquitto
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.ledger import Ledger, Token
from sparsyedge.coordinator.authority.newcomer_limits import MINUTE_S, Newcomers
from sparsyedge.coordinator.authority.renewals import Renewals
from sparsyedge.coordinator.authority.rotation import settle
from sparsyedge.coordinator.authority.succession_desk import SuccessionDesk
from sparsyedge.edge.errors import FrameError, SecurityError, SparsyedgeError
from sparsyedge.edge.protocol.channel import Connected, Received
from sparsyedge.edge.protocol.messages import decode, encode
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.enrolment_messages import (
    MAX_REQUEST_BYTES,
    Enrolled,
    EnrolReply,
    EnrolRequest,
    NotEnrolled,
)
from sparsyedge.edge.text import one_line

__all__ = ["answer", "serve", "serving"]

log = logging.getLogger(__name__)

POLL_S = 0.25
RETRY_S = 2.0
WRITE_S = 1.0
"""Minimum time between writes of refusals: a flood must not wear out the disk."""
CROWD_PER_MINUTE = 6000
"""Warn above this. A thousand devices reconnecting after a broker restart make half as many connections."""
DEAF_S = 10.0
NO_PATIENCE_S = 0.0
"""The desk does not wait for the broker, whose queue grows meanwhile in a flood; it tells it again a little later."""
CLOCK_SLACK_S = 3600.0
"""How far the clock may be set back before today's tokens become invalid."""
LOCK_NAME = "enrolment.lock"


@contextmanager
def serving(authority: Authority) -> Iterator[None]:
    """Answer newcomers in a separate thread for the duration of the block."""
    stopped = threading.Event()
    thread = threading.Thread(target=serve, args=(authority, stopped), name="enrolment")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def serve(authority: Authority, stopped: threading.Event) -> None:
    """Answer newcomers until `stopped`. Logs any failure and retries: a run can go on without enrolment."""
    said, identity = "", f"enrolment-{uuid.uuid4().hex}"
    while not stopped.is_set():
        try:
            with (authority.folder / LOCK_NAME).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _Desk(authority, identity).serve(stopped)
        except BlockingIOError:  # another process is answering
            stopped.wait(RETRY_S)
        except Exception as error:
            trouble = str(error) if isinstance(error, SparsyedgeError) else f"{type(error).__name__}: {error}"
            if trouble != said:
                log.warning("newcomers are not answered: %s; trying again", one_line(trouble))
                log.debug("where that came from", exc_info=error)
            said = trouble
            stopped.wait(RETRY_S)


class _Desk:
    """Answers newcomers over one of the coordinator's connections."""

    def __init__(self, authority: Authority, identity: str) -> None:
        self._authority = authority
        self._topics = Topics(authority.settings.fleet)
        self._link = authority.link(identity)
        self._newcomers = Newcomers(time.monotonic)
        self._deaf_until_s: dict[str, float] = {}
        """Devices that lost their token for asking too often, and until when to ignore their queued requests."""
        self._crowd_told_s = -MINUTE_S
        self._renewals = Renewals(authority)
        self._succession = SuccessionDesk(authority, self._link)
        self._is_reload_due = False
        """Whether the lists changed lately: the broker forgets what it is told while it reads them."""

    def serve(self, stopped: threading.Event) -> None:
        """Answer until `stopped`; raises LinkError or SecurityError on failure."""
        self._link.subscribe(self._topics.enrol_request("+"), as_published=True)
        self._link.subscribe(self._topics.renewal_request("+"), as_published=True)
        if self._authority.cluster is None:
            self._link.subscribe(mosquitto.CONNECTIONS_TOPIC)
        try:
            # A crash may have come in the middle of a rotation.
            settle(self._authority)
            with self._authority.ledger() as ledger:
                # The lists may come from an older sparsyedge, or a crash may have prevented the last write.
                self._authority.write_lists(ledger)
                self._reload()
                self._link.open()
                self._answer_all(ledger, stopped)
        finally:
            self._link.close()

    def _answer_all(self, ledger: Ledger, stopped: threading.Event) -> None:
        written_s = time.monotonic()
        try:
            while not stopped.is_set():
                message = self._link.receive(POLL_S)
                if isinstance(message, Received):
                    self._take(ledger, message)
                elif isinstance(message, Connected):
                    self._succession.tell()
                if time.monotonic() - written_s >= WRITE_S:
                    self._write_down(ledger)
                    self._succession.look()
                    if self._is_reload_due:
                        self._is_reload_due = False
                        self._authority.reload(patience_s=NO_PATIENCE_S)
                    written_s = time.monotonic()
        finally:
            self._write_down(ledger)

    def _reload(self) -> None:
        """Have the broker read its lists without waiting for it, now and once more a little later."""
        self._authority.reload(patience_s=NO_PATIENCE_S)
        self._is_reload_due = True

    def _write_down(self, ledger: Ledger) -> None:
        self._succession.flush(ledger)
        if refused := self._newcomers.take_refused():
            ledger.count_refusals(refused)

    def _take(self, ledger: Ledger, message: Received) -> None:
        """Handle one message. Cheap checks come first, so a flood costs no decoding, lookups or signatures."""
        if message.topic == mosquitto.CONNECTIONS_TOPIC:
            self._note_crowd(message.payload)
            return
        levels = self._topics.parse(message.topic)
        if levels == ("round",):
            self._succession.take_task(message.payload)
            return
        if levels[0] == "dev" and levels[-1] == "status":
            self._succession.take(ledger, levels[1], message)
            return
        if levels[0] == "dev":
            self._renew(ledger, levels[1], message)
            return
        device = message.topic.rpartition("/")[2]
        if time.monotonic() < self._deaf_until_s.get(device, 0.0):
            return
        if self._newcomers.is_too_much(device):
            self._shut(ledger, device)
        elif message.retained:
            # Clear retained requests: the broker would deliver them again on every connect.
            if message.payload:
                self._link.publish(message.topic, b"", retain=True)
        else:
            self._handle(ledger, device, message.payload)

    def _renew(self, ledger: Ledger, device: str, message: Received) -> None:
        """Answer a member that asks for a longer certificate."""
        if message.retained:
            if message.payload:
                self._link.publish(message.topic, b"", retain=True)
            return
        reply = self._renewals.answer(ledger, device, message.payload, now_s=time.time())
        if reply is not None:
            self._link.publish(self._topics.renewal_reply(device), encode(reply))

    def _note_crowd(self, payload: bytes) -> None:
        try:
            begun = float(payload)
        except ValueError:
            return
        if begun >= CROWD_PER_MINUTE and time.monotonic() - self._crowd_told_s >= MINUTE_S:
            self._crowd_told_s = time.monotonic()
            log.warning(
                "%d connections a minute reach the broker, more than a fleet makes: somebody may keep it busy; "
                "docs/explanation/security.md says what a firewall can do",
                begun,
            )

    def _shut(self, ledger: Ledger, device: str) -> None:
        """Void the token of a device that floods us; the broker drops its connections when it reloads the list."""
        self._deaf_until_s[device] = time.monotonic() + DEAF_S
        ledger.void_token(device)
        self._authority.write_newcomers(ledger)
        self._reload()
        self._newcomers.refuse(
            device, "it asked too often, and its token is void; find out why before you make another"
        )

    def _handle(self, ledger: Ledger, device: str, payload: bytes) -> None:
        try:
            if len(payload) > MAX_REQUEST_BYTES:
                raise FrameError("too long")
            request = decode(payload, EnrolRequest)
            if request.device != device:
                raise FrameError("sent by another device")
        except FrameError:
            # Do not log the payload: it may contain a token.
            self._newcomers.refuse(device, "the request cannot be read")
            return
        reply = answer(self._authority, ledger, request, now_s=time.time(), may_work=self._newcomers.may_work)
        if reply is None:
            return
        if isinstance(reply, NotEnrolled):
            self._newcomers.refuse(device, reply.reason)
        else:
            log.info("enrolled %s", device)
            self._is_reload_due = True
        self._link.publish(self._topics.enrol_reply(request.reply), encode(reply))


def answer(
    authority: Authority,
    ledger: Ledger,
    request: EnrolRequest,
    *,
    now_s: float,
    may_work: Callable[[], bool] = lambda: True,
) -> EnrolReply | None:
    """Return a certificate for a request with a valid token, and a refusal for any other.

    Returns None if the token is valid but `may_work` allows no more work right now.
    """
    try:
        token = _check_token(ledger, request, now_s)
        if not may_work():
            return None
        public = certificates.read_csr(request.csr, device=request.device)
        return Enrolled(device=request.device, certificate=_certify(authority, ledger, request, token, public))
    except SecurityError as error:
        return NotEnrolled(device=request.device, reason=str(error))


def _check_token(ledger: Ledger, request: EnrolRequest, now_s: float) -> Token:
    token = ledger.token(request.token)
    if token is None or token.device != request.device:
        # Same message for both cases: a stranger must not learn whether a token exists.
        raise SecurityError("the token is not one for this device; make one with `sparsyedge coordinator token`")
    if now_s > token.expires_at:
        raise SecurityError("the token has expired; make another with `sparsyedge coordinator token`")
    if token.expires_at - now_s > token.life_s + CLOCK_SLACK_S:
        # It could stay valid for years.
        raise SecurityError(
            "the token was made while the coordinator's clock was ahead; make another with "
            "`sparsyedge coordinator token`"
        )
    return token


def _certify(
    authority: Authority, ledger: Ledger, request: EnrolRequest, token: Token, public: ec.EllipticCurvePublicKey
) -> str:
    key_sha256 = hashlib.sha256(
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()
    if token.key_sha256 == key_sha256 and token.certificate is not None:
        # The reply got lost: send the same certificate for the same key again.
        return token.certificate
    certificate = authority.issue(public, request.device)
    pem = certificates.certificate_pem(certificate).decode()
    if token.key_sha256 is not None or not ledger.enrol(
        request.token,
        key_sha256=key_sha256,
        certificate=pem,
        serial=certificate.serial_number,
        expires_at=certificate.not_valid_after_utc.timestamp(),
    ):
        raise SecurityError("the token was used already; make another with `sparsyedge coordinator token`")
    if authority.cluster is not None or ledger.was_member(request.device):
        # The new certificate revokes the earlier ones and lifts the ban on a revoked device. A cluster lists everybody.
        authority.write_lists(ledger)
        authority.reload(patience_s=NO_PATIENCE_S)
    return pem
