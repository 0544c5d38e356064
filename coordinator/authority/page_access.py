"""Who may see the live page of a fleet: a token whose hash is kept here, and a certificate for the page.

page-token.sha256    the hash of the one token that is good now; the token itself is shown once and kept nowhere
page.pem, page.key   the page's certificate, issued by the fleet's authority, made anew before it ends
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sparsyedge.coordinator.authority import certificates
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.cluster import LOCAL_NAMES
from sparsyedge.coordinator.authority.followers import issued_by
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.identity import private_pem
from sparsyedge.edge.storage import write_atomically

__all__ = ["TOKEN_NAME", "Pair", "make_page_token", "page_certificate", "page_token_sha256"]

TOKEN_NAME = "page-token.sha256"
RENEW_DAYS = 60
"""A certificate with less than this left is made anew when a page starts."""


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    def names(self) -> tuple[str, ...]:
        """Return the names and addresses that the certificate is for; raises SecurityError if it cannot be read."""
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise SecurityError(
                f"{self.certificate} is no certificate for a page: {error}; it must be PEM and name its hosts"
            ) from error
        return (
            *found.get_values_for_type(x509.DNSName),
            *(str(address) for address in found.get_values_for_type(x509.IPAddress)),
        )


def make_page_token(folder: Path) -> str:
    """Make the token that lets people see and steer runs of this fleet; voids the one before."""
    token = secrets.token_urlsafe(32)
    write_atomically(folder / TOKEN_NAME, f"{_sha256(token)}\n".encode(), private=True)
    return token


def page_token_sha256(folder: Path) -> str:
    """Return the hash of the token that is good now; raises SecurityError if none was made."""
    path = folder / TOKEN_NAME
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError(
            f"no token for the page in {folder}: {error}; make one with "
            f"`sparsyedge coordinator page-token --dir {folder}`"
        ) from error


def page_certificate(authority: Authority, hosts: Sequence[str]) -> Pair:
    """Return the page's certificate for the fleet's names and these; makes one if there is none that will do."""
    pair = Pair(authority.folder / "page.pem", authority.folder / "page.key")
    wanted = list(dict.fromkeys([*authority.settings.hosts, *hosts, socket.gethostname(), *LOCAL_NAMES]))
    if not _will_do(pair, wanted, authority.certificate()):
        key = certificates.new_key()
        try:
            issued = authority.issue_page(key.public_key(), wanted)
        except (OSError, ValueError) as error:
            raise SecurityError(
                f"cannot make a certificate for the page: {error}; the key of the authority in {authority.folder} is "
                f"needed for that, or give --certificate and --key"
            ) from error
        write_atomically(pair.key, private_pem(key), private=True)
        write_atomically(pair.certificate, certificates.certificate_pem(issued))
    return pair


def _will_do(pair: Pair, wanted: Sequence[str], issuer: x509.Certificate) -> bool:
    if not (pair.certificate.is_file() and pair.key.is_file()):
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        named = set(pair.names())
    except (ValueError, SecurityError):
        return False
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=RENEW_DAYS)
    lasts = certificate.not_valid_after_utc > soon
    return lasts and set(wanted) <= named and issued_by(certificate, issuer)


def _sha256(token: str) -> str:
    # A token of 256 random bits needs no slow hash.
    return hashlib.sha256(token.encode()).hexdigest()
