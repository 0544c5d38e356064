"""Altered inputs without feedback: input number i depends on seed and i alone, on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

NUMBERS = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
TEXTS = (b"-1", b"1e308", b"1e999", b"9" * 400, b"null", b"\\ud800", b"\x00", b"\xff\xfe", b'"', b"[" * 2000, b"{}")
MAX_BYTES = 1 << 16


def altered(corpus: Sequence[bytes], *, seed: int, count: int) -> Iterator[bytes]:
    """The corpus as it is, then its members altered, `count` inputs in all."""
    yield from corpus[:count]
    for number in range(len(corpus), count):
        yield one_altered(corpus, random.Random(seed << 40 | number))


def one_altered(corpus: Sequence[bytes], rng: random.Random) -> bytes:
    """A member of the corpus with one to six changes."""
    content = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        _alter(content, rng, corpus)
    return bytes(content[:MAX_BYTES])


def _alter(content: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    place = rng.randrange(len(content) + 1)
    end = min(len(content), place + rng.choice((1, 1, 2, 4, 8, 64, 512)))
    match rng.randrange(8):
        case 0 if place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        case 1 if place < len(content):
            content[place] = rng.randrange(256)
        case 2:
            del content[place:end]
        case 3:
            content[place:place] = content[place:end] * rng.choice((1, 2, 100))
        case 4:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) & (1 << 8 * width) - 1
            content[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))
        case 5:
            content[place:end] = rng.choice(TEXTS)
        case 6:
            del content[place:]
        case _:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            content[place:end] = other[start : start + rng.choice((4, 32, 512))]
