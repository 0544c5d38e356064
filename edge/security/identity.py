"""A device's identity on disk: its own key, its certificate, and the authority it trusts.

While the fleet's authority is rotated there are two (`authorities.json`). That one file is the truth then: ca.pem,
which TLS reads, and signing.pub follow it, and are made anew from it whenever a crash came in between.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.tls import Tls
from sparsyedge.edge.security.succession import TrustedAuthority, TrustRecord
from sparsyedge.edge.storage import write_atomically

__all__ = ["Identity", "make_csr", "private_pem"]

CA_NAME = "ca.pem"
CERTIFICATE_NAME = "device.pem"
KEY_NAME = "device.key"
SIGNING_KEY_NAME = "signing.pub"
RECORD_NAME = "authorities.json"
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
        if (folder / RECORD_NAME).is_file():
            identity._settle(identity.record)
        return identity

    @property
    def tls(self) -> Tls:
        """The credentials for this device's connections."""
        return Tls(self.folder / CA_NAME, self.folder / CERTIFICATE_NAME, self.folder / KEY_NAME)

    @property
    def record(self) -> TrustRecord:
        """Whom this device trusts; raises SecurityError if that cannot be read."""
        path = self.folder / RECORD_NAME
        try:
            return msgspec.json.decode(path.read_bytes(), type=TrustRecord)
        except FileNotFoundError:
            ca = (self.folder / CA_NAME).read_text(encoding="ascii")
            key = (self.folder / SIGNING_KEY_NAME).read_text(encoding="ascii").strip()
            return TrustRecord(number=0, authorities=(TrustedAuthority(ca=ca, signing_key=key),))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SecurityError(f"cannot read {path}: {error}; enrol this device again") from error

    @property
    def signing_keys(self) -> tuple[str, ...]:
        """The Ed25519 public keys, in hex, of which one must have signed all artifacts."""
        return tuple(authority.signing_key for authority in self.record.authorities)

    @property
    def expires_s(self) -> float:
        """When the certificate ends, in Unix seconds."""
        return self._certificate().not_valid_after_utc.timestamp()

    @property
    def serial(self) -> str:
        """The certificate's number, in hex."""
        return f"{self._certificate().serial_number:x}"

    @property
    def is_certified(self) -> bool:
        """Whether the certificate is by the authority that this device shall be certified by."""
        return _is_by(self._certificate(), self.record.authorities[0].ca)

    def trust(self, record: TrustRecord) -> None:
        """Trust the authorities of this record, and no other, from now on and after a crash at any moment."""
        write_atomically(self.folder / RECORD_NAME, msgspec.json.encode(record), private=True)
        self._settle(record)

    def ask_again(self, device: str) -> str:
        """A PEM request to certify the same key again."""
        return make_csr(self._key(), device)

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
        # What this device was told since an earlier enrolment does not count any more.
        (self.folder / RECORD_NAME).unlink(missing_ok=True)
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
            return Tls(self.folder / CA_NAME)
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

    def renew(self, certificate: str, *, device: str) -> None:
        """Replace the certificate by one that lasts longer, or by one of the authority that is to certify us.

        Raises SecurityError as `finish` does. Any other is ignored: it may be an old answer.
        """
        self._check(certificate, device)
        found = x509.load_pem_x509_certificate(certificate.encode())
        record = self.record
        is_wanted = _is_by(found, record.authorities[0].ca)
        lasts_longer = found.not_valid_after_utc.timestamp() > self.expires_s
        if is_wanted > self.is_certified or (lasts_longer and is_wanted == self.is_certified):
            write_atomically(self.folder / CERTIFICATE_NAME, certificate.encode())
            if record.number:
                self._settle(record)

    def _settle(self, record: TrustRecord) -> None:
        """Make ca.pem and signing.pub say what the record says.

        The issuer of our certificate comes first: versions that know of one authority look at the first alone.
        """
        present = self._certificate()
        listed = sorted(record.authorities, key=lambda authority: not _is_by(present, authority.ca))
        keys = [authority.signing_key for authority in record.authorities]
        known = (self.folder / SIGNING_KEY_NAME).read_text(encoding="ascii").strip()
        files = {
            CA_NAME: "".join(f"{authority.ca.strip()}\n" for authority in listed).encode(),
            SIGNING_KEY_NAME: f"{known if known in keys else keys[0]}\n".encode(),
        }
        for name, content in files.items():
            if (self.folder / name).read_bytes() != content:
                write_atomically(self.folder / name, content)

    def _certificate(self) -> x509.Certificate:
        path = self.folder / CERTIFICATE_NAME
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SecurityError(f"cannot read {path}: {error}; enrol again") from error

    def _check(self, certificate: str, device: str) -> None:
        try:
            issued = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError as error:
            raise SecurityError(f"the certificate for {device} cannot be read: {error}") from error
        if not any(_is_by(issued, authority.ca) for authority in self.record.authorities):
            raise SecurityError(f"the certificate for {device} is not from the pinned authority")
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


def _is_by(certificate: x509.Certificate, ca: str) -> bool:
    """Whether the authority with this certificate (PEM) issued that one."""
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.encode()))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


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
