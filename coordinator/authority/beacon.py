"""Announces a secured fleet's broker on the local network, so that a card needs no address (mDNS).

It says the fleet's name, ports and the fingerprint of its authority, all of which a connection to the port shows too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.protocol.mdns import Announced, Broadcast, authority_fingerprint, local_addresses
from sparsyedge.edge.protocol.tls import is_loopback

__all__ = ["announcing"]

log = logging.getLogger(__name__)

ALL_ADDRESSES = ("0.0.0.0", "::")
LOOK_S = 30.0
"""How often to see whether this machine's addresses have changed."""
MAX_ADDRESSES = 8


@contextmanager
def announcing(authority: Authority | None) -> Iterator[None]:
    """Announce the broker during the `with` block, in a thread of its own.

    Does nothing for a fleet without an authority, whose devices are on this machine alone; for a broker that only this
    machine can reach, or that listens on IPv6 alone; for a cluster, whose nodes every device knows; and where
    `announce` is false.
    """
    if authority is None or not _is_wanted(authority):
        yield
        return
    stopped = threading.Event()
    thread = threading.Thread(target=_announce, args=(authority, stopped), name="beacon")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _is_wanted(authority: Authority) -> bool:
    settings = authority.settings
    reaches_others = not is_loopback(settings.bind) and (settings.bind in ALL_ADDRESSES or ":" not in settings.bind)
    return authority.cluster is None and reaches_others and settings.announce is not False


def _announce(authority: Authority, stopped: threading.Event) -> None:
    """Announce until `stopped`, again whenever the addresses or the authority change.

    Logs any failure: a run can go on without.
    """
    present: tuple[str, tuple[str, ...]] | None = None
    said, broadcast = "", None
    while not stopped.is_set():
        addresses = _addresses(authority.settings.bind)
        # The fleet's authority may be replaced meanwhile, and devices look for the one that they trust.
        wanted = authority_fingerprint(authority.folder / "ca.pem"), addresses
        if wanted != present:
            if broadcast is not None:
                broadcast.close()
            broadcast, present = None, None
            try:
                if addresses:
                    broadcast = _open(authority, addresses)
                    present = wanted
            except OSError as error:
                if str(error) != said:
                    log.warning("the fleet is not announced on the local network: %s; trying again", error)
                said = str(error)
        stopped.wait(LOOK_S)
    if broadcast is not None:
        broadcast.close()


def _addresses(bind: str) -> tuple[str, ...]:
    return local_addresses()[:MAX_ADDRESSES] if bind in ALL_ADDRESSES else (bind,)


def _open(authority: Authority, addresses: tuple[str, ...]) -> Broadcast:
    settings = authority.settings
    broadcast = Broadcast(
        Announced(
            fleet=settings.fleet,
            authority=authority_fingerprint(authority.folder / "ca.pem"),
            port=settings.port,
            enrol_port=settings.enrol_port,
            addresses=addresses,
        )
    )
    broadcast.open()
    log.info("fleet %s is announced on the local network at %s", settings.fleet, ", ".join(addresses))
    return broadcast
