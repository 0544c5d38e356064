"""A device's identity on disk: its own key, its certificate, and the authority it trusts."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.storage import write_atomically

__all__ = ["Identity", "make_csr", "private_pem"]

CA_NAME = "ca.pem"
CERTIFICATE_NAME = "device.pem"
KEY_NAME = "device.key"
SIGNING_KEY_NAME = "signing.pub"
ENTRY_NAME = "entry.pem"
ENTRY_KEY_NAME = "entry.key"
TOKEN_MARK_NAME = "token.sha256"
"""The hash of the token that the key was made for."""


@dataclass(frozen=True)
class Identity:
    """The folder that `sparsyedge edge enrol` makes; only its owner may read its key."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Identity:
        """Open an enrolled device's identity; raises SecurityError if it is incomplete or not private."""
        identity = cls(folder)
        for name in (CA_NAME, CERTIFICATE_NAME, KEY_NAME, SIGNING_KEY_NAME):
            if not (folder / name).is_file():
                raise SecurityError(
                    f"the identity in {folder} has no {name}; enrol this device with `sparsyedge edge enrol FILE`"
                )
        mode = stat.S_IMODE((folder / KEY_NAME).stat().st_mode)
        if mode & 0o077:
            raise SecurityError(
                f"others may read the key {folder / KEY_NAME} (mode {mode:04o}); run `chmod 600 {folder / KEY_NAME}`, "
                f"and revoke this device and enrol it again if somebody may have copied it"
            )
        return identity

    @property
    def tls(self) -> Tls:
        """The credentials for this device's connections."""
        return Tls(self.folder / CA_NAME, self.folder / CERTIFICATE_NAME, self.folder / KEY_NAME)

    @property
    def trust(self) -> Tls:
        """The authority alone, for connections before there is a certificate."""
        return Tls(self.folder / CA_NAME)

    @property
    def signing_key(self) -> str:
        """The Ed25519 public key, in hex, that must have signed all artifacts."""
        return (self.folder / SIGNING_KEY_NAME).read_text(encoding="ascii").strip()

    def sign(self, content: bytes) -> bytes:
        """Sign `content` with this device's key; anyone with its certificate can check the signature."""
        return self._key().sign(content, ec.ECDSA(hashes.SHA256()))

    def begin(self, *, ca: str, signing_key: str, token: str) -> ec.EllipticCurvePrivateKey:
        """Store the trusted authority and signing key, and make a key for this token.

        An interrupted enrolment continues with the key it made: the token may already be spent on it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SecurityError(f"cannot make the folder {self.folder}: {error.strerror}; choose another") from error
        write_atomically(self.folder / CA_NAME, ca.encode())
        write_atomically(self.folder / SIGNING_KEY_NAME, f"{signing_key}\n".encode())
        token_sha256, mark = hashlib.sha256(token.encode()).hexdigest().encode(), self.folder / TOKEN_MARK_NAME
        if not ((self.folder / KEY_NAME).is_file() and mark.is_file() and mark.read_bytes() == token_sha256):
            key = ec.generate_private_key(ec.SECP256R1())
            (self.folder / CERTIFICATE_NAME).unlink(missing_ok=True)
            write_atomically(self.folder / KEY_NAME, private_pem(key), private=True)
            write_atomically(mark, token_sha256, private=True)
        return self._key()

    def keep_entry(self, certificate: str | None, key: str | None) -> Tls:
        """The credentials for an enrolment: a certificate for that alone, where the broker asks for one."""
        if certificate is None or key is None:
            return self.trust
        write_atomically(self.folder / ENTRY_NAME, certificate.encode())
        write_atomically(self.folder / ENTRY_KEY_NAME, key.encode(), private=True)
        return Tls(self.folder / CA_NAME, self.folder / ENTRY_NAME, self.folder / ENTRY_KEY_NAME)

    def is_of(self, device: str) -> bool:
        """Whether this identity belongs to that device."""
        try:
            self._check((self.folder / CERTIFICATE_NAME).read_text(encoding="ascii"), device)
        except (SecurityError, UnicodeDecodeError):
            return False
        return True

    def finish(self, certificate: str, *, device: str) -> None:
        """Store the certificate; raises SecurityError unless the pinned authority issued it for this device and key."""
        self._check(certificate, device)
        write_atomically(self.folder / CERTIFICATE_NAME, certificate.encode())
        for name in (ENTRY_NAME, ENTRY_KEY_NAME):
            (self.folder / name).unlink(missing_ok=True)

    def _check(self, certificate: str, device: str) -> None:
        try:
            issued = x509.load_pem_x509_certificate(certificate.encode())
            authority = x509.load_pem_x509_certificate((self.folder / CA_NAME).read_bytes())
            issued.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise SecurityError(
                f"the certificate for {device} is not from the pinned authority: {error or 'bad signature'}"
            ) from error
        names = [name.value for name in issued.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [device] or issued.public_key() != self._key().public_key():
            raise SecurityError(f"the certificate is for {names}, not for {device} and its key; enrol again")

    def _key(self) -> ec.EllipticCurvePrivateKey:
        path = self.folder / KEY_NAME
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise SecurityError(f"{path} is not a private key; remove it and enrol again") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SecurityError(f"{path} is not a key that sparsyedge made; remove it and enrol again")
        return key


def make_csr(key: ec.EllipticCurvePrivateKey, device: str) -> str:
    """A PEM request to certify the key for the device."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as PEM, unencrypted: nobody is there to type a password when a device starts."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
