"""Where the page listens."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from sparsyedge.edge.errors import ConfigError, LinkError

__all__ = ["DEFAULT_PORT", "Address", "listen", "parse_address"]

DEFAULT_PORT = 8640
BACKLOG = 128
EXAMPLE = f"give HOST:PORT, e.g. 127.0.0.1:{DEFAULT_PORT} or 0.0.0.0:{DEFAULT_PORT}"


@dataclass(frozen=True)
class Address:
    """An IP address and a port; port 0 lets the system choose."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    name: str
    """The host as the user gave it."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.ip.is_loopback

    @property
    def host(self) -> str:
        """What to put into a URL on this machine."""
        if self.ip.is_unspecified:
            return "127.0.0.1" if self.ip.version == 4 else "[::1]"
        return f"[{self.ip}]" if self.ip.version == 6 else str(self.ip)


def parse_address(text: str) -> Address:
    """Return the address that `HOST:PORT`, `HOST`, `:PORT` or `PORT` means; raises ConfigError for anything else."""
    host, port = _split(text.strip())
    if not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ConfigError(f"the page's address is {text!r}, and {port!r} is no port; {EXAMPLE}")
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        found = _resolve(host, text)
    return Address(found, int(port), host)


def _split(text: str) -> tuple[str, str]:
    if text.isdecimal():
        return "127.0.0.1", text
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or str(DEFAULT_PORT)
    if text.count(":") > 1:
        return text, str(DEFAULT_PORT)
    host, _, port = text.partition(":")
    return host or "127.0.0.1", port or str(DEFAULT_PORT)


def _resolve(host: str, text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the page's address is {text!r}, and nobody knows the host {host!r}; {EXAMPLE}") from error
    return ipaddress.ip_address(str(found[0][4][0]).partition("%")[0])


def listen(address: Address) -> socket.socket:
    """Return a socket that listens there; raises LinkError if the address is taken or not this machine's."""
    family = socket.AF_INET if address.ip.version == 4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address.ip), address.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise LinkError(
            f"the page cannot listen at {address.host}, port {address.port}: {error.strerror}; another page may be "
            f"there, choose another port with HOST:PORT"
        ) from error
    return listener
