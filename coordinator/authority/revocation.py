"""Revokes a device, even a connected one: blocks new connections, bans it from all topics, ends the old connection."""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.coordinator.authority import certificates
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.identity import private_pem
from sparsyedge.edge.storage import write_atomically

__all__ = ["Revoked", "revoke"]

log = logging.getLogger(__name__)

CONNECT_LIMIT_S = 20.0
CLEAR_LIMIT_S = 20.0
QUIET_S = 0.5
CLUSTER_QUIET_S = 3.0
"""The nodes of a cluster tell each other of retained messages."""
PASS_DAYS = 1 / 24


@dataclass(frozen=True)
class Revoked:
    """Outcome of a revocation."""

    certificates: int
    """How many were valid until now."""
    reloaded: bool
    """Whether the broker on this machine has reloaded its lists."""
    disconnected: bool
    """Whether any open connection of the device was ended."""


def revoke(authority: Authority, device: str, *, host: str = "127.0.0.1") -> Revoked:
    """Revoke the device; raises SecurityError for an unknown one.

    The revocation list stops new connections but leaves open ones alone. So we also ban the device from all topics and
    end its connection: Mosquitto keeps only the newest connection of a name, and we open one under the device's name.
    """
    with authority.ledger() as ledger:
        if not ledger.knows(device):
            raise SecurityError(
                f"no device {device!r} in {authority.folder}; `sparsyedge coordinator identities` shows all"
            )
        revoked = ledger.revoke(device)
        authority.write_lists(ledger)
    reloaded = authority.reload()
    # The nodes of a cluster end the connections of those who are not listed any more.
    disconnected = reloaded and (authority.cluster is not None or _take_place(authority, device, host))
    if reloaded:
        _clear_topics(authority, device)
    return Revoked(revoked, reloaded, disconnected)


def _clear_topics(authority: Authority, device: str) -> None:
    """Clear all messages of the device that the broker retains."""
    link = authority.link(f"revocation-{uuid.uuid4().hex}")
    link.subscribe(f"{Topics(authority.settings.fleet).root}/dev/{device}/#")
    try:
        link.open(CONNECT_LIMIT_S)
        until_s = time.monotonic() + CLEAR_LIMIT_S
        quiet_s = QUIET_S if authority.cluster is None else CLUSTER_QUIET_S
        # Retained messages arrive at once. Nothing follows, since the device is already banned.
        while time.monotonic() < until_s and (message := link.receive(quiet_s)) is not None:
            if isinstance(message, Received) and message.retained and message.payload:
                link.publish(message.topic, b"", retain=True)
    except LinkError as error:
        log.warning("what the broker keeps of %s was not cleared: %s", device, error)
    finally:
        link.close()


def _take_place(authority: Authority, device: str, host: str) -> bool:
    """Push the device off the broker: connect under its name with a short-lived certificate, then disconnect."""
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
