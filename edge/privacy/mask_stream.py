"""Masks from keys: ChaCha20's stream, added to words or taken from them."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sparsyedge.edge.privacy.fixed_point import Words

__all__ = ["add_mask", "take_mask"]

BLOCK_BYTES = 1 << 18
"""Fits a small board's cache."""
NONCE = bytes(16)
"""A key masks one update, so the nonce need not differ."""


def add_mask(words: Words, key: bytes) -> None:
    """Add the key's mask in place, modulo the words' size."""
    _combine(words, key, np.add)


def take_mask(words: Words, key: bytes) -> None:
    """Subtract the key's mask in place, modulo the words' size."""
    _combine(words, key, np.subtract)


def _combine(words: Words, key: bytes, operation: np.ufunc) -> None:
    stream = Cipher(ChaCha20(key, NONCE), mode=None).encryptor()
    zeros, block = bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    mask = np.frombuffer(block, words.dtype.newbyteorder("<"))
    for first in range(0, words.size, mask.size):
        part = words[first : first + mask.size]
        stream.update_into(zeros, block)
        operation(part, mask[: part.size], out=part)
