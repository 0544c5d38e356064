"""Cohorts whose classes come out even, where devices say which they have. Pure: seed, round and fleet decide.

The rounds of a run form cycles in which every device has one turn, so that a device with rare classes trains no more
often than others. At the start of a cycle the devices are shuffled and dealt out to its rounds: each goes where its
classes are scarcest, and then pairs swap places as long as that makes classes more even. All of it is done in whole
numbers, so every machine deals alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["balanced_cohort"]

Shares = NDArray[np.int64]
"""(devices, classes)"""

WHOLE = 1000
"""What a device's shares add up to, at most."""
BLOCK = 256
"""At most so many devices are dealt out together, if two cohorts fit in: the swaps look at all pairs."""


def balanced_cohort(
    devices: Iterable[str], size: int, *, seed: int, round_number: int, classes: Mapping[str, bytes]
) -> list[str]:
    """The devices whose turn it is, at most `size`; fewer only if the fleet does not divide evenly.

    `classes` has a byte per class for every device that says which it has: in proportion to its samples. Devices
    without an entry fit anywhere.
    """
    fleet = set(devices)
    rounds = -(-len(fleet) // size)
    if rounds <= 1:
        return sorted(fleet)
    cycle, turn = divmod(round_number - 1, rounds)
    shuffled = sorted(fleet, key=lambda device: _lot(seed, cycle, device))
    together = max(2, BLOCK // size)
    block, place = divmod(turn, together)
    members = shuffled[block * together * size : (block + 1) * together * size]
    cohorts = min(together, rounds - block * together)
    dealt = _deal(_shares(members, classes), cohorts, -(-len(members) // cohorts))
    # Dealing favours the first cohorts, so a lot decides which of them comes when.
    order = sorted(range(cohorts), key=lambda each: _lot(seed, cycle, f"{block} {each}"))
    return [device for device, cohort in zip(members, dealt, strict=True) if cohort == order[place]]


def _lot(seed: int, cycle: int, what: str) -> bytes:
    return hashlib.sha256(f"{seed}/cycle {cycle}/{what}".encode()).digest()


def _shares(devices: Sequence[str], classes: Mapping[str, bytes]) -> Shares:
    """What each device has of every class; all devices count alike, however much they claim."""
    told = [classes.get(device, b"") for device in devices]
    shares = np.zeros((len(devices), max(map(len, told), default=0)), dtype=np.int64)
    for row, each in zip(shares, told, strict=True):
        counts = np.frombuffer(each, dtype=np.uint8).astype(np.int64)
        row[: counts.size] = counts * WHOLE // max(1, int(counts.sum()))
    return shares


def _deal(shares: Shares, cohorts: int, places: int) -> list[int]:
    """The cohort of each device, so that the sum of the squared class sums of all cohorts is small."""
    sums = np.zeros((cohorts, shares.shape[1]), dtype=np.int64)
    taken = np.zeros(cohorts, dtype=np.int64)
    dealt = np.zeros(len(shares), dtype=np.int64)
    for device, share in enumerate(shares):
        overlap = sums @ share
        # Full cohorts last, then the least overlap, then the emptiest.
        cohort = int(np.lexsort((taken, overlap, taken >= places))[0])
        dealt[device] = cohort
        taken[cohort] += 1
        sums[cohort] += share
    if len(shares) <= BLOCK:
        _swap(shares, sums, dealt)
    return dealt.tolist()


def _swap(shares: Shares, sums: Shares, dealt: NDArray[np.int64]) -> None:
    """Exchange the pair of devices that gains most, until none does; at most once per device on average."""
    products = shares @ shares.T
    squares = np.diagonal(products)
    apart = squares[:, None] + squares[None, :] - 2 * products
    for _ in range(len(shares)):
        # What a device would overlap with in each cohort: (devices, cohorts).
        overlaps = shares @ sums.T
        own = np.take_along_axis(overlaps, dealt[:, None], axis=1)[:, 0]
        there = overlaps[:, dealt]
        # The change of the sum of squares, halved, if row and column change places.
        change = there + there.T - own[:, None] - own[None, :] + apart
        change[dealt[:, None] == dealt[None, :]] = 0
        one, other = np.unravel_index(int(np.argmin(change)), change.shape)
        if change[one, other] >= 0:
            return
        difference = shares[other] - shares[one]
        sums[dealt[one]] += difference
        sums[dealt[other]] -= difference
        dealt[one], dealt[other] = dealt[other], dealt[one]
