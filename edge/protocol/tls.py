"""Plain connections on this machine only; everywhere else TLS with the pinned authority."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsyedge.edge.errors import SecurityError

__all__ = ["Tls", "client_context", "is_loopback", "require_tls", "up_to_date_context"]


@dataclass(frozen=True)
class Tls:
    """A connection's credentials: the trusted authority, and our own certificate, if we have one yet."""

    ca: Path
    """A file with its certificate; with two while the fleet's authority is rotated."""
    certificate: Path | None = None
    key: Path | None = None
    any_name: bool = False
    """Whether to accept the authority's servers under any name, for those that were found and not named.

    A fleet's authority certifies nobody else's servers, and members' certificates are no servers'.
    """


def is_loopback(host: str) -> bool:
    """Whether a host is this machine. Looks up no name: only localhost and loopback addresses count."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def require_tls(host: str, tls: Tls | None, *, what: str) -> None:
    """Refuse unencrypted connections and listeners beyond this machine; raises SecurityError."""
    if tls is None and not is_loopback(host):
        raise SecurityError(
            f"{what} is at {host}, which is not this machine, and no TLS is configured; use 127.0.0.1, or secure the "
            f"fleet with `sparsyedge coordinator init` and enrol the device with `sparsyedge edge enrol`"
        )


def client_context(tls: Tls) -> ssl.SSLContext:
    """A context that checks the peer's certificate and name against the pinned authority alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _fill(context, tls)
    return context


def up_to_date_context(tls: Tls) -> ssl.SSLContext:
    """The same for a client that connects again and again: every connection uses the files as they are then.

    The device may have enrolled again, or its fleet's authority may have been replaced; what it does not trust any more
    must not count for its next connection either.
    """
    context = _UpToDate(ssl.PROTOCOL_TLS_CLIENT)
    context.files = tls
    _fill(context, tls)
    return context


def _fill(context: ssl.SSLContext, tls: Tls) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Socket
    context.check_hostname = not tls.any_name
    try:
        context.load_verify_locations(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:  # includes ssl.SSLError
        files = ", ".join(str(path) for path in (tls.ca, tls.certificate, tls.key) if path is not None)
        raise SecurityError(f"cannot use the TLS files {files}: {error}; enrol again or copy them again") from error


class _UpToDate(ssl.SSLContext):
    """Hands every connection to a context made from the files of that moment."""

    files: Tls

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        try:
            return client_context(self.files).wrap_socket(*arguments, **options)
        except SecurityError:
            # During an enrolment the files do not match each other; use what was there before.
            return super().wrap_socket(*arguments, **options)


class _Socket(ssl.SSLSocket):
    """Closes itself if the handshake fails: the MQTT client forgets a socket that it could not use."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise
