"""Masks from keys."""

from __future__ import annotations

import numpy as np
import pytest

from sparsyedge.edge.privacy.mask_stream import BLOCK_BYTES, add_mask, take_mask

RFC_8439_A_1 = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
"""The first block of ChaCha20's stream for a key and nonce of zeros (RFC 8439, appendix A.1, vector 1)."""


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_a_mask_is_the_stream_of_chacha20(kind: type[np.uint32] | type[np.uint64]) -> None:
    words = np.zeros(64 // np.dtype(kind).itemsize, kind)
    add_mask(words, bytes(32))
    assert words.tobytes() == RFC_8439_A_1


@pytest.mark.parametrize("size", [1, BLOCK_BYTES // 4, BLOCK_BYTES // 4 + 1, 3 * BLOCK_BYTES])
def test_a_mask_that_is_added_and_taken_leaves_nothing(size: int) -> None:
    words = np.arange(size, dtype=np.uint32)
    add_mask(words, b"k" * 32)
    assert not np.array_equal(words, np.arange(size))
    take_mask(words, b"k" * 32)
    assert np.array_equal(words, np.arange(size))


def test_blocks_of_a_long_mask_differ() -> None:
    words = np.zeros(2 * BLOCK_BYTES // 4, np.uint32)
    add_mask(words, b"k" * 32)
    assert not np.array_equal(words[: words.size // 2], words[words.size // 2 :])
