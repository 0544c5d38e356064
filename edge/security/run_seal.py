"""Proves that a task comes from the operator: the fleet's signing key certifies a run key, which signs the task.

    signing key (pinned by devices) --certifies--> run key --signs--> every task of the run

The run key signs the message bytes as they travel, up to the last field, which holds the signature. So a device can
tell who wrote a task before it parses it.
"""

from __future__ import annotations

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.messages import RoundTask, RunCertificate, encode

__all__ = ["certify", "check_certificate", "check_seal", "seal"]

# Prefixes for the signed bytes: no other signature by these keys can pass for one of these.
RUN_CONTEXT = b"sparsyedge run 1\n"
TASK_CONTEXT = b"sparsyedge task 1\n"
PROOF = b',"proof":"'
PROOF_DIGITS = 128
TAIL_BYTES = len(PROOF) + PROOF_DIGITS + len(b'"}')


def certify(run_key: str, *, fleet: str, run: str, serial: int, signing_key: Ed25519PrivateKey) -> RunCertificate:
    """Allow the holder of a run key (public, in hex) to lead a run."""
    signature = signing_key.sign(_statement(fleet, run, serial, run_key)).hex()
    return RunCertificate(fleet=fleet, run=run, serial=serial, key=run_key, signature=signature)


def check_certificate(certificate: RunCertificate, *, fleet: str, signing_key: str) -> None:
    """Raise SecurityError unless the signing key (public, in hex) certifies this run key for this fleet."""
    if certificate.fleet != fleet:
        raise SecurityError(f"its run key is certified for fleet {certificate.fleet}, this is fleet {fleet}")
    statement = _statement(certificate.fleet, certificate.run, certificate.serial, certificate.key)
    if not _is_signed(statement, certificate.signature, signing_key):
        raise SecurityError(f"its run key {certificate.key[:12]}... is not certified by key {signing_key[:12]}...")


def seal(task: RoundTask, run_key: Ed25519PrivateKey) -> RoundTask:
    """The task with its proof."""
    unsigned = encode(msgspec.structs.replace(task, proof=""))
    signed, _, _ = unsigned.rpartition(PROOF)
    return msgspec.structs.replace(task, proof=run_key.sign(TASK_CONTEXT + signed).hex())


def check_seal(payload: bytes, run_key: str) -> None:
    """Raise SecurityError unless the holder of the run key (public, in hex) wrote this message."""
    signed, tail = payload[:-TAIL_BYTES], payload[-TAIL_BYTES:]
    digits = tail[len(PROOF) : -len(b'"}')]
    whole = tail.startswith(PROOF) and tail.endswith(b'"}') and len(digits) == PROOF_DIGITS
    if not whole or not _is_signed(TASK_CONTEXT + signed, digits.decode("ascii", "replace"), run_key):
        raise SecurityError(f"it is not signed by run key {run_key[:12]}...")


def _statement(fleet: str, run: str, serial: int, key: str) -> bytes:
    return RUN_CONTEXT + msgspec.json.encode((fleet, run, serial, key))


def _is_signed(content: bytes, signature: str, key: str) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True
