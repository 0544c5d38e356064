"""Revokes a device, even a connected one: blocks new connections, bans it from all topics, ends the old connection."""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.authority import certificates, mosquitto
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import Topics
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.security.identity import private_pem
from sparsyedge.edge.storage import write_atomically

__all__ = ["Revoked", "revoke"]

log = logging.getLogger(__name__)

CONNECT_LIMIT_S = 20.0
CLEAR_LIMIT_S = 20.0
QUIET_S = 0.5
PASS_DAYS = 1 / 24


@dataclass(frozen=True)
class Revoked:
    """Outcome of a revocation."""

    certificates: int
    """How many were valid until now."""
    reloaded: bool
    """Whether the broker on this machine knows of it."""
    disconnected: bool
    """Whether a connection that the device had is ended."""


def revoke(authority: Authority, device: str, *, host: str = "127.0.0.1") -> Revoked:
    """Shut the device out; raises SecurityError for one that nobody knows.

    The revocation list stops new connections. It does not touch one that is open, and so the device is banned from all
    topics and its connection is ended: Mosquitto gives a name to its newest connection, and for once that is ours.
    """
    with authority.ledger() as ledger:
        if not ledger.knows(device):
            raise SecurityError(
                f"no device {device!r} in {authority.folder}; `sparsyedge coordinator identities` shows all"
            )
        revoked = ledger.revoke(device)
        authority.write_lists(ledger)
    reloaded = mosquitto.reload(authority.folder)
    disconnected = reloaded and _take_place(authority, device, host)
    if reloaded:
        _clear_topics(authority, device)
    return Revoked(revoked, reloaded, disconnected)


def _clear_topics(authority: Authority, device: str) -> None:
    """Have the broker forget all that it keeps of the device."""
    link = authority.link(f"revocation-{uuid.uuid4().hex}")
    link.subscribe(f"{Topics(authority.settings.fleet).root}/dev/{device}/#")
    try:
        link.open(CONNECT_LIMIT_S)
        until_s = time.monotonic() + CLEAR_LIMIT_S
        # What it keeps comes at once, and then nothing: the device is shut out by now.
        while time.monotonic() < until_s and (message := link.receive(QUIET_S)) is not None:
            if isinstance(message, Received) and message.retained and message.payload:
                link.publish(message.topic, b"", retain=True)
    except LinkError as error:
        log.warning("what the broker keeps of %s was not cleared: %s", device, error)
    finally:
        link.close()


def _take_place(authority: Authority, device: str, host: str) -> bool:
    """Connect under the device's name, with a certificate made for it, and leave again."""
    key = certificates.new_key()
    certificate = authority.issue(key.public_key(), device, days=PASS_DAYS)
    with tempfile.TemporaryDirectory(prefix="sparsyedge-") as name:
        folder = Path(name)
        tls = Tls(authority.folder / "ca.pem", folder / "own.pem", folder / "own.key")
        write_atomically(folder / "own.pem", certificates.certificate_pem(certificate))
        write_atomically(folder / "own.key", private_pem(key), private=True)
        link = Link(host, authority.settings.port, identity=device, tls=tls)
        try:
            link.open(CONNECT_LIMIT_S)
        except LinkError as error:
            log.warning("the connection of %s was not ended, though it is banned from all topics: %s", device, error)
            return False
        link.close()
    return True
