"""Plain connections on this machine only; everywhere else TLS with one pinned authority."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import SecurityError

__all__ = ["Tls", "client_context", "is_loopback", "reload_identity", "require_tls"]


@dataclass(frozen=True)
class Tls:
    """A connection's credentials: the one trusted authority, and our own certificate, if we have one yet."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


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
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Socket
    try:
        context.load_verify_locations(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:  # includes ssl.SSLError
        files = ", ".join(str(path) for path in (tls.ca, tls.certificate, tls.key) if path is not None)
        raise SecurityError(f"cannot use the TLS files {files}: {error}; enrol again or copy them again") from error
    return context


def reload_identity(context: ssl.SSLContext, tls: Tls) -> None:
    """Make the next connection use the certificate now on disk: the device may have enrolled again."""
    if tls.certificate is not None:
        # During an enrolment the files do not match each other; keep the previous ones then.
        with contextlib.suppress(OSError):
            context.load_cert_chain(tls.certificate, tls.key)


class _Socket(ssl.SSLSocket):
    """Closes itself if the handshake fails: the MQTT client forgets a socket that it could not use."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise
