"""Answers newcomers: a token that is good makes a certificate of a request, everything else is refused and counted.

Runs beside every `coordinator run` in a thread of its own, and alone as `coordinator enrol`. Of several at one fleet,
one at a time is at work.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sparsyedge.coordinator import certificates, mosquitto
from sparsyedge.coordinator.authority import Authority
from sparsyedge.coordinator.ledger import Ledger
from sparsyedge.edge.enrolment import Enrolled, EnrolReply, EnrolRequest, NotEnrolled
from sparsyedge.edge.errors import FrameError, LinkError, SecurityError
from sparsyedge.edge.link import Link, Received
from sparsyedge.edge.messages import Topics, decode, encode

__all__ = ["answer", "serve", "serving"]

log = logging.getLogger(__name__)

POLL_S = 0.25
RETRY_S = 2.0
LOCK_NAME = "enrolment.lock"


@contextmanager
def serving(authority: Authority) -> Iterator[None]:
    """Answer newcomers in a thread of its own while the block lasts."""
    stopped = threading.Event()
    thread = threading.Thread(target=serve, args=(authority, stopped), name="enrolment")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def serve(authority: Authority, stopped: threading.Event) -> None:
    """Answer newcomers until `stopped`; a broker that is away is waited for."""
    with (authority.folder / LOCK_NAME).open("w") as lock:
        while not stopped.is_set():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _serve(authority, authority.link(f"enrolment-{uuid.uuid4().hex}"), stopped)
            except BlockingIOError:
                stopped.wait(RETRY_S)
            except LinkError as error:
                log.warning("newcomers are not answered: %s", error)
                stopped.wait(RETRY_S)


def _serve(authority: Authority, link: Link, stopped: threading.Event) -> None:
    topics = Topics(authority.settings.fleet)
    link.subscribe(topics.enrol_request)
    try:
        link.open()
        with authority.ledger() as ledger:
            while not stopped.is_set():
                message = link.receive(POLL_S)
                # The broker keeps no requests; one that it kept is of an earlier time.
                if isinstance(message, Received) and not message.retained:
                    _handle(authority, ledger, link, message.payload)
    finally:
        link.close()


def _handle(authority: Authority, ledger: Ledger, link: Link, payload: bytes) -> None:
    try:
        request = decode(payload, EnrolRequest)
    except FrameError:
        # What does not fit is not repeated here: it may hold a token.
        ledger.count_refusal("", "the request cannot be read")
        log.warning("refused an enrolment: the request cannot be read")
        return
    reply = answer(authority, ledger, request, now_s=time.time())
    if isinstance(reply, NotEnrolled):
        log.warning("refused the enrolment of %s: %s", request.device, reply.reason)
    else:
        log.info("enrolled %s", request.device)
    link.publish(Topics(authority.settings.fleet).enrol_reply(request.reply), encode(reply))


def answer(authority: Authority, ledger: Ledger, request: EnrolRequest, *, now_s: float) -> EnrolReply:
    """A certificate for a request with a good token; a refusal, counted, for any other."""
    try:
        public = certificates.read_csr(request.csr, device=request.device)
        return Enrolled(device=request.device, certificate=_certify(authority, ledger, request, public, now_s))
    except SecurityError as error:
        ledger.count_refusal(request.device, str(error))
        return NotEnrolled(device=request.device, reason=str(error))


def _certify(
    authority: Authority, ledger: Ledger, request: EnrolRequest, public: ec.EllipticCurvePublicKey, now_s: float
) -> str:
    token = ledger.token(request.token)
    if token is None or token.device != request.device:
        # One sentence for both: a stranger does not learn whether a token exists.
        raise SecurityError("the token is not one for this device; make one with `sparsyedge coordinator token`")
    if now_s > token.expires_at:
        raise SecurityError("the token has expired; make another with `sparsyedge coordinator token`")
    key_sha256 = hashlib.sha256(
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()
    if token.key_sha256 == key_sha256 and token.certificate is not None:
        # The answer was lost on its way: the same key gets the same certificate again.
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
    if ledger.was_member(request.device):
        # Its earlier certificates are revoked by this one, and a device that was shut out is let in again.
        authority.write_lists(ledger)
        mosquitto.reload(authority.folder)
    return pem
