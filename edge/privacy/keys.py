"""The keys of one sum: agreed with a neighbour, for masks and for sealed shares."""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy.messages import Advert, SumTask

__all__ = ["advert_content", "commitment_of", "mask_secret", "open_shares", "own_mask_key", "public_of", "seal_shares"]

NONCE = bytes(12)
"""Each direction between two devices has a key of its own, for one message."""


def public_of(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def advert_content(task: SumTask, advert: Advert) -> bytes:
    """The bytes that a device signs."""
    keys = advert.mask_key + advert.channel_key + advert.commitment
    return b"sparsyedge private sum 1\n" + task.context + keys + advert.device.encode()


def commitment_of(task: SumTask, device: str, seed: bytes) -> bytes:
    """The hash that binds a device to the seed of its own mask."""
    return hashlib.sha256(b"sparsyedge own mask 1\n" + task.context + seed + device.encode()).digest()


def own_mask_key(task: SumTask, seed: bytes) -> bytes:
    """The key of the mask that a device adds by itself."""
    return _derive(task, seed, b"own mask")


def mask_secret(task: SumTask, private: bytes, public: bytes) -> bytes:
    """The key of the mask that two devices share: one adds it, the other takes it away."""
    return _derive(task, _agree(private, public), b"shared mask")


def seal_shares(task: SumTask, private: bytes, public: bytes, *, sender: str, receiver: str, shares: bytes) -> bytes:
    """Shares that only the receiver reads, and that only the sender can have made."""
    return _channel(task, private, public, sender, receiver).encrypt(NONCE, shares, None)


def open_shares(task: SumTask, private: bytes, public: bytes, *, sender: str, receiver: str, sealed: bytes) -> bytes:
    """The shares in a sealed message; raises SecurityError if it was altered or is somebody else's."""
    try:
        return _channel(task, private, public, sender, receiver).decrypt(NONCE, sealed, None)
    except InvalidTag as error:
        raise SecurityError(f"the shares of {sender} for {receiver} were altered, or are of another sum") from error


def _channel(task: SumTask, private: bytes, public: bytes, sender: str, receiver: str) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(_derive(task, _agree(private, public), f"shares {sender} {receiver}".encode()))


def _agree(private: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point of small order
        raise SecurityError("a key that a device advertised is not usable") from error


def _derive(task: SumTask, secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=task.context, info=b"sparsyedge " + purpose).derive(secret)
