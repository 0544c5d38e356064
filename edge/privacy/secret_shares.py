"""Shamir's secret sharing of 32 bytes: any `threshold` shares give the secret, fewer say nothing of it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from sparsyedge.edge.errors import SecurityError

__all__ = ["SECRET_BYTES", "SHARE_BYTES", "join", "split"]

SECRET_BYTES = 32
SHARE_BYTES = 33
PRIME = 2**256 + 297
"""The smallest prime above 2**256."""
MAX_TRIES = 2000
"""Selections of shares to try where some are wrong."""


def split(
    secret: bytes, places: Sequence[int], threshold: int, draw: Callable[[int], int] = secrets.randbelow
) -> dict[int, bytes]:
    """A share for each place; places are positive and differ."""
    if not 1 <= threshold <= len(places):
        raise SecurityError(f"{len(places)} shares cannot have a threshold of {threshold}")
    coefficients = [int.from_bytes(secret, "big"), *(draw(PRIME) for _ in range(threshold - 1))]
    return {place: _at(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> tuple[bytes | None, tuple[int, ...]]:
    """The secret, and the places whose shares are wrong; None if no selection of shares gives the right one."""
    points = {place: int.from_bytes(share, "big") for place, share in sorted(shares.items())}
    for chosen in itertools.islice(itertools.combinations(points, threshold), MAX_TRIES):
        basis = {place: points[place] for place in chosen}
        value = _through(basis, 0)
        if value < 1 << (8 * SECRET_BYTES) and is_right(secret := value.to_bytes(SECRET_BYTES, "big")):
            wrong = (place for place, point in points.items() if place not in basis and _through(basis, place) != point)
            return secret, tuple(wrong)
    return None, ()


def _at(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def _through(points: Mapping[int, int], place: int) -> int:
    """The value at `place`, which is none of theirs, of the polynomial through the points (Lagrange)."""
    places = tuple(points)
    around = 1
    for own in places:
        around = around * (place - own) % PRIME
    parts = (points[own] * weight * _inverse(place - own) for own, weight in zip(places, _weights(places), strict=True))
    return around * sum(parts) % PRIME


@lru_cache(maxsize=256)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """For each place the inverse of the product of its distances to the others; mostly the same places come again."""
    weights = []
    for own in places:
        product = 1
        for other in places:
            if other != own:
                product = product * (own - other) % PRIME
        weights.append(_inverse(product))
    return tuple(weights)


@lru_cache(maxsize=4096)
def _inverse(value: int) -> int:
    return pow(value, -1, PRIME)
