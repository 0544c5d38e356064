"""Certificate requests: DER in an honest PEM envelope, or any text, by the first byte."""

from __future__ import annotations

import base64

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from sparsyedge.coordinator.authority.certificates import read_csr
from sparsyedge.edge.errors import SecurityError

DEVICE = "pi-01"
# Keys without chance, and signatures without it, so that a run is the same every time.
P256, P384 = (ec.derive_private_key(4711, curve) for curve in (ec.SECP256R1(), ec.SECP384R1()))
ED25519 = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def seeds() -> list[bytes]:
    requests = [_request(P256, DEVICE), _request(P384, DEVICE), _request(ED25519, DEVICE), _request(P256, "pi-02")]
    der = [b"\0" + request.public_bytes(serialization.Encoding.DER) for request in requests]
    return [*der, b"\1" + requests[0].public_bytes(serialization.Encoding.PEM)]


def check(data: bytes) -> None:
    text = data[1:].decode(errors="replace")
    if data[:1] == b"\0":
        body = base64.encodebytes(data[1:]).decode()
        text = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"
    try:
        key = read_csr(text, device=DEVICE)
    except SecurityError:
        return
    assert key.curve.name == "secp256r1"


def _request(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, name: str) -> x509.CertificateSigningRequest:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return builder.sign(key, None)
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)
