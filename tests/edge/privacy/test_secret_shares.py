"""Shamir's shares: enough of them open a secret, fewer say nothing, wrong ones are found."""

from __future__ import annotations

import itertools
import random

import pytest

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy.secret_shares import PRIME, join, split

SECRET = bytes(range(32))
PLACES = (1, 2, 3, 4, 5)


def is_secret(candidate: bytes) -> bool:
    return candidate == SECRET


def test_the_modulus_is_prime() -> None:
    # Miller and Rabin's test; a composite passes one base with a chance of at most a quarter.
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    draw = random.Random(0)
    for _ in range(40):
        power = pow(draw.randrange(2, PRIME - 1), odd, PRIME)
        powers = [power, *(power := power * power % PRIME for _ in range(twos - 1))]
        assert powers[0] == 1 or PRIME - 1 in powers


@pytest.mark.parametrize("threshold", [1, 2, 3, 5])
def test_any_threshold_of_shares_opens_the_secret(threshold: int) -> None:
    shares = split(SECRET, PLACES, threshold)
    for chosen in itertools.combinations(PLACES, threshold):
        assert join({place: shares[place] for place in chosen}, threshold, is_secret) == (SECRET, ())


def test_shares_have_known_values() -> None:
    drawn = iter([7, 11])
    shares = split((5).to_bytes(32, "big"), (1, 2), 3 - 1, lambda bound: next(drawn))
    assert [int.from_bytes(shares[place], "big") for place in (1, 2)] == [5 + 7, 5 + 14]


def test_one_share_too_few_fits_every_secret_equally() -> None:
    # With two of three shares known, each secret has exactly one third share that completes it.
    shares = split(SECRET, (1, 2, 3), 3)
    for secret in (bytes(32), b"\xff" * 32, SECRET):
        at_0, at_1, at_2 = (int.from_bytes(value, "big") for value in (secret, shares[1], shares[2]))
        third = (at_0 - 3 * at_1 + 3 * at_2) % PRIME
        known = {1: shares[1], 2: shares[2], 3: third.to_bytes(33, "big")}
        assert join(known, 3, lambda candidate, wanted=secret: candidate == wanted) == (secret, ())  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [(1,), (3,), (5,), (1, 5)])
def test_wrong_shares_are_named_and_survived(wrong: tuple[int, ...]) -> None:
    shares = split(SECRET, PLACES, 3)
    shares |= {place: bytes([0, *[place] * 32]) for place in wrong}
    assert join(shares, 3, is_secret) == (SECRET, wrong)


def test_too_many_wrong_shares_open_nothing() -> None:
    shares = split(SECRET, PLACES, 4)
    shares |= {1: bytes(33), 2: bytes(33)}
    assert join(shares, 4, is_secret) == (None, ())


def test_a_threshold_beyond_the_shares_is_refused() -> None:
    with pytest.raises(SecurityError, match="threshold of 6"):
        split(SECRET, PLACES, 6)
