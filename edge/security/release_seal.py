"""Proves that a release or an order comes from the operator: the fleet's signing key, which devices pin, signs both."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sparsyedge.edge.errors import FrameError, SecurityError
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, decode
from sparsyedge.edge.protocol.releases import MAX_STATEMENT, Order, Release, Sealed

__all__ = ["open_order", "open_release", "seal_order", "seal_release"]

# Prefixes for the signed bytes: no other signature by this key can pass for one of these.
RELEASE_CONTEXT = b"sparsyedge release 1\n"
ORDER_CONTEXT = b"sparsyedge order 1\n"
MAX_PAYLOAD_BYTES = 2 * MAX_STATEMENT

Statement = TypeVar("Statement", Release, Order)


def seal_release(release: Release, key: Ed25519PrivateKey, *, chunk_bytes: int = CHUNK_BYTES) -> Sealed:
    """Sign a release."""
    return _seal(msgspec.json.encode(release), RELEASE_CONTEXT, key, chunk_bytes)


def seal_order(order: Order, key: Ed25519PrivateKey) -> Sealed:
    """Sign an order."""
    return _seal(msgspec.json.encode(order), ORDER_CONTEXT, key, CHUNK_BYTES)


def open_release(payload: bytes, *, fleet: str, signing_key: str) -> tuple[Release, int]:
    """The release in a message, and its chunk size; raises SecurityError unless the key signed it for this fleet."""
    sealed = _check(payload, RELEASE_CONTEXT, signing_key, "the release")
    return _read(sealed, Release, fleet, "the release"), sealed.chunk_bytes


def open_order(payload: bytes, *, fleet: str, signing_key: str) -> Order:
    """The order in a message; raises SecurityError unless the key signed it for this fleet."""
    return _read(_check(payload, ORDER_CONTEXT, signing_key, "the order"), Order, fleet, "the order")


def _seal(statement: bytes, context: bytes, key: Ed25519PrivateKey, chunk_bytes: int) -> Sealed:
    signature = key.sign(context + statement).hex()
    return Sealed(statement=statement.decode(), signature=signature, chunk_bytes=chunk_bytes)


def _check(payload: bytes, context: bytes, signing_key: str, what: str) -> Sealed:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise SecurityError(f"{what} has {len(payload)} bytes, allowed are {MAX_PAYLOAD_BYTES}")
    try:
        sealed = decode(payload, Sealed)
    except FrameError as error:
        raise SecurityError(f"{what} cannot be read: {error}") from error
    if not sealed.signature:
        raise SecurityError(f"{what} is not signed, and this device takes only signed ones")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signing_key))
        key.verify(bytes.fromhex(sealed.signature), context + sealed.statement.encode())
    except (InvalidSignature, ValueError) as error:
        raise SecurityError(
            f"{what} is not signed with the fleet's key {signing_key[:12]}...: it was altered, or is another fleet's"
        ) from error
    return sealed


def _read(sealed: Sealed, kind: type[Statement], fleet: str, what: str) -> Statement:
    try:
        statement = decode(sealed.statement.encode(), kind)
    except FrameError as error:
        raise SecurityError(f"{what} is signed but cannot be read: {error}") from error
    if statement.fleet != fleet:
        raise SecurityError(f"{what} is for fleet {statement.fleet}, this device is of fleet {fleet}")
    return statement
