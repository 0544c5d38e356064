"""Who announces a fleet's broker on the local network (mDNS). The only file that imports zeroconf.

An answer is a hint, and anyone can send one: it says where to knock. TLS with the pinned authority decides who opens.
"""

from __future__ import annotations

import hashlib
import ipaddress
import random
import secrets
import ssl
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.errors import SecurityError

if TYPE_CHECKING:
    # Imported where it is used: it costs a device 13 MB that only those need who look.
    from zeroconf import ServiceInfo, Zeroconf

__all__ = [
    "Announced",
    "Answers",
    "Broadcast",
    "authority_fingerprint",
    "authority_fingerprints",
    "listen",
    "local_addresses",
]

PEM_END: Final = "-----END CERTIFICATE-----"
SERVICE: Final = "_sparsyedge._tcp.local."
LISTEN_S: Final = 3.0
SETTLE_S: Final = 0.3
"""How long to wait for further answers after the first good one."""
TICK_S: Final = 0.05
ASK_S: Final = 1.0
MAX_ANSWERS: Final = 32
"""The most answers to look at; of more, a sample, so that a flood hides nobody for ever."""
MAX_NAMES: Final = 1000
MAX_NAME: Final = 54
"""DNS allows 63 bytes for the name of an instance, with what tells it from others."""
MAX_ADDRESSES: Final = 4
"""The most addresses to take from one answer."""


@dataclass(frozen=True, kw_only=True)
class Announced:
    """A fleet's broker as it is announced: whose it is, and its ports."""

    fleet: str
    authority: str
    """The SHA-256 of its authority's certificate, in hex."""
    port: int
    """The port for members."""
    enrol_port: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Answers:
    """What was heard: brokers of the fleet with its authority, and how many answers were passed over."""

    brokers: tuple[Announced, ...] = ()
    strangers: int = 0
    """Answers in the name of the fleet with another authority, or that cannot be read."""


def authority_fingerprint(ca: Path) -> str:
    """The SHA-256 of the authority's certificate, the first in its file, in hex; raises SecurityError without one."""
    return authority_fingerprints(ca)[0]


def authority_fingerprints(ca: Path) -> tuple[str, ...]:
    """The SHA-256 of each authority's certificate in a file, in hex; raises SecurityError if the file holds none."""
    try:
        text = ca.read_text(encoding="ascii")
        found = [part + PEM_END for part in text.split(PEM_END)[:-1]] or [text]
        return tuple(hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.strip())).hexdigest() for pem in found)
    except (OSError, ValueError) as error:
        raise SecurityError(f"cannot read the authority's certificate {ca}: {error}; enrol again") from error


def local_addresses(*, with_loopback: bool = False) -> tuple[str, ...]:
    """The IPv4 addresses of this machine."""
    return tuple(
        str(each.ip) for each in _interfaces() if each.ip.version == 4 and (with_loopback or not each.ip.is_loopback)
    )


def listen(fleet: str, authorities: Collection[str], *, timeout_s: float = LISTEN_S) -> Answers:
    """Ask the local network for a fleet's broker; blocks for up to `timeout_s`, less if one answers.

    `authorities` are the fingerprints of those that may certify it.

    Raises OSError if this machine has no network to ask.
    """
    from zeroconf import IPVersion, ServiceBrowser, ServiceListener, Zeroconf

    names: set[str] = set()

    class Hearer(ServiceListener):
        def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
            if len(names) < MAX_NAMES:
                names.add(name)

        def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
            self.add_service(zc, type_, name)

        def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
            pass

    until_s = time.monotonic() + timeout_s
    # Named one by one, since a machine without any would leave zeroconf without a socket.
    network = Zeroconf(interfaces=list(local_addresses(with_loopback=True)), ip_version=IPVersion.V4Only)
    try:
        browser = ServiceBrowser(network, SERVICE, Hearer())
        heard = _hear(network, names, fleet, authorities, until_s=until_s)
        browser.cancel()
    finally:
        network.close()
    return heard


def _hear(network: Zeroconf, names: set[str], fleet: str, authorities: Collection[str], *, until_s: float) -> Answers:
    """Look at each name that comes up, until the time is over or a good answer has had some company."""
    done: set[str] = set()
    brokers: list[Announced] = []
    strangers = 0
    while time.monotonic() < until_s:
        new = [name for name in list(names) if name not in done]
        for name in random.sample(new, min(len(new), MAX_ANSWERS - len(done))):
            done.add(name)
            left_s = max(TICK_S, min(ASK_S, until_s - time.monotonic()))
            info = network.get_service_info(SERVICE, name, timeout=int(1000 * left_s))
            said = _read(info) if info is not None else None
            if said is not None and said.fleet == fleet and said.authority in authorities:
                brokers.append(said)
                until_s = min(until_s, time.monotonic() + SETTLE_S)
            elif said is None or said.fleet == fleet:
                strangers += 1
        time.sleep(TICK_S)
    return Answers(tuple(brokers), strangers)


def _read(info: ServiceInfo) -> Announced | None:
    """An answer, checked; None if it makes no sense."""
    texts = {key: (value or b"").decode(errors="replace") for key, value in info.properties.items()}
    enrol_port = texts.get(b"enrol", "")
    usable = [each for each in info.parsed_addresses() if _is_usable(each)]
    if not (enrol_port.isascii() and enrol_port.isdecimal() and len(enrol_port) <= 5 and usable and info.port):
        return None
    if not 1 <= int(enrol_port) <= 65535:
        return None
    return Announced(
        fleet=texts.get(b"fleet", ""),
        authority=texts.get(b"ca", ""),
        port=info.port,
        enrol_port=int(enrol_port),
        addresses=tuple(_near_first(usable)[:MAX_ADDRESSES]),
    )


def _is_usable(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return found.version == 4 and not (found.is_multicast or found.is_unspecified)


def _near_first(addresses: Sequence[str]) -> list[str]:
    """Sort what shares a network with us to the front: a coordinator may have others, such as containers'."""
    networks = [each.network for each in _interfaces()]
    return sorted(addresses, key=lambda each: not any(ipaddress.ip_address(each) in network for network in networks))


def _interfaces() -> list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]:
    import ifaddr

    found = []
    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            address = each.ip if isinstance(each.ip, str) else each.ip[0]
            found.append(ipaddress.ip_interface(f"{address}/{each.network_prefix}"))
    return found


class Broadcast:
    """Announces a broker on the networks of its addresses until it is closed; `open` blocks for about two seconds."""

    def __init__(self, announced: Announced) -> None:
        self._announced = announced
        self._network: Zeroconf | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Begin; raises OSError if that network cannot be used."""
        from zeroconf import Error, IPVersion, ServiceInfo, Zeroconf

        said = self._announced
        info = ServiceInfo(
            SERVICE,
            # A name of our own: with the same one, a run and `coordinator enrol` would overwrite each other.
            f"{said.fleet[:MAX_NAME]} {secrets.token_hex(4)}.{SERVICE}",
            port=said.port,
            parsed_addresses=list(said.addresses),
            properties={
                "fleet": said.fleet,
                "protocol": str(OURS.protocol),
                "ca": said.authority,
                "enrol": str(said.enrol_port),
            },
            # A host of our own: the machine's name belongs to whoever answers for the machine.
            server=f"sparsyedge-{secrets.token_hex(4)}.local.",
        )
        with self._lock:
            self._network = Zeroconf(interfaces=list(said.addresses), ip_version=IPVersion.V4Only)
        try:
            self._network.register_service(info, allow_name_change=True)
        except Error as error:
            self.close()
            raise OSError(f"the name could not be registered: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Take the announcement back."""
        with self._lock:
            network, self._network = self._network, None
        if network is not None:
            network.close()
