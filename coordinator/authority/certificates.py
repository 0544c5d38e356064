"""X.509 for a small fleet: one authority, one server, members, and a revocation list. No I/O."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sparsyedge.edge.errors import SecurityError

__all__ = [
    "certificate_pem",
    "first_pem",
    "issue_member",
    "issue_page",
    "issue_peer",
    "issue_server",
    "make_authority",
    "new_key",
    "read_csr",
    "revocation_list",
]

AUTHORITY_DAYS = 20 * 365
MEMBER_DAYS = 5 * 365
PAGE_DAYS = 396
# A board without a clock boots in 1970 or at its image's date, and must be able to enrol before it knows the time.
# Also, a revocation list made while our own clock was ahead must not lock everybody out once the clock is corrected.
VALID_FROM = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
WRITTEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""A clock before this date is wrong. Lifetimes of certificates and lists start here at the earliest."""
MAX_CSR_CHARACTERS = 8192
SERIAL = "(serial)"

Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    """Generate a P-256 key, which every TLS library for small boards supports."""
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(key: Key, *, fleet: str) -> x509.Certificate:
    """Make the self-signed certificate of a fleet's authority."""
    name = _name(f"sparsyedge authority of fleet {fleet}"[:64])
    return (
        _builder(name, name, key.public_key(), days=AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def issue_server(
    authority: x509.Certificate, key: Key, public: ec.EllipticCurvePublicKey, *, hosts: Sequence[str]
) -> x509.Certificate:
    """Issue the broker's certificate for all its names and addresses."""
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _builder(_name(hosts[0][:64]), authority.subject, public, days=AUTHORITY_DAYS)
    return _finish(builder.add_extension(names, critical=False), usage, authority, key)


def issue_page(
    authority: x509.Certificate, key: Key, public: ec.EllipticCurvePublicKey, *, hosts: Sequence[str]
) -> x509.Certificate:
    """Issue a certificate for browsers, some of which refuse one that is good for more than about a year."""
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    begin = _now() - datetime.timedelta(days=1)
    builder = _builder(_name(hosts[0][:64]), authority.subject, public, days=PAGE_DAYS, begin=begin)
    return _finish(builder.add_extension(names, critical=False), usage, authority, key)


def issue_peer(
    authority: x509.Certificate, key: Key, public: ec.EllipticCurvePublicKey, *, hosts: Sequence[str]
) -> x509.Certificate:
    """Issue a certificate for a node that connects to others and is connected to."""
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _builder(_name(hosts[0][:64]), authority.subject, public, days=AUTHORITY_DAYS)
    return _finish(builder.add_extension(names, critical=False), usage, authority, key)


def issue_member(
    authority: x509.Certificate,
    key: Key,
    public: ec.EllipticCurvePublicKey,
    *,
    name: str,
    days: float = MEMBER_DAYS,
    mark: str | None = None,
) -> x509.Certificate:
    """Issue a certificate that lets its holder connect to the broker as `name`, and do nothing else.

    A `mark` tells its subject from those of other certificates with that name; SERIAL is the certificate's own number.
    """
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    serial = x509.random_serial_number()
    subject = _name(name, f"{serial:x}" if mark == SERIAL else mark)
    builder = _builder(subject, authority.subject, public, days=days, serial=serial)
    return _finish(builder, usage, authority, key)


def read_csr(pem: str, *, device: str) -> ec.EllipticCurvePublicKey:
    """Return the key to certify; raises SecurityError for a bad request, a wrong name or a key other than P-256."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        valid = request.is_signature_valid
        names = [attribute.value for attribute in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        public = request.public_key()
    # The library's errors, such as InvalidVersion, share no base class, and a newcomer can trigger any of them.
    except Exception as error:
        raise SecurityError("the certificate request cannot be read") from error
    if not valid:
        raise SecurityError("the certificate request is not signed with the key that it is for")
    if names != [device]:
        raise SecurityError("the certificate request is for another name than the device's")
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp256r1":
        raise SecurityError("the certificate request is not for a P-256 key")
    return public


def revocation_list(authority: x509.Certificate, key: Key, serials: Iterable[int]) -> bytes:
    """Return the PEM revocation list. It stays valid for 20 years: an expired list would lock out every device."""
    now = _now()
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(VALID_FROM)
        .next_update(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
            critical=False,
        )
    )
    for serial in serials:
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(revoked)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def first_pem(content: bytes) -> bytes:
    """The first certificate of a PEM file that may hold several."""
    return certificate_pem(x509.load_pem_x509_certificate(content))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    *,
    days: float,
    serial: int | None = None,
    begin: datetime.datetime = VALID_FROM,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number() if serial is None else serial)
        .not_valid_before(begin)
        .not_valid_after(_now() + datetime.timedelta(days=days))
    )


def _finish(
    builder: x509.CertificateBuilder, usage: x509.ExtendedKeyUsage, authority: x509.Certificate, key: Key
) -> x509.Certificate:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )


def _now() -> datetime.datetime:
    return max(WRITTEN, datetime.datetime.now(datetime.UTC))


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str, mark: str | None = None) -> x509.Name:
    marks = [] if mark is None else [x509.NameAttribute(NameOID.SERIAL_NUMBER, mark)]
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name), *marks])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
