"""What devices and coordinator tell each other for a private sum; masked updates travel as bytes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sparsyedge.edge.config import Identifier
from sparsyedge.edge.privacy.fixed_point import MAX_LENGTH, FixedPoint
from sparsyedge.edge.privacy.secret_shares import SHARE_BYTES

__all__ = ["Advert", "Delivery", "Neighbourhood", "Opening", "OpeningRequest", "SealedShares", "SumTask"]

MAX_NEIGHBOURS = 1024
TAG_BYTES = 16
MAX_SIGNATURE = 512

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Share = Annotated[bytes, msgspec.Meta(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
SealedShare = Annotated[
    bytes, msgspec.Meta(min_length=2 * SHARE_BYTES + TAG_BYTES, max_length=2 * SHARE_BYTES + TAG_BYTES)
]
Names = Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=MAX_NEIGHBOURS)]


class PrivateMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message of a private sum: nothing undeclared in it can pass unseen."""


class SumTask(PrivateMessage, frozen=True):
    """What is summed and how, the same for all devices; the coordinator signs it."""

    context: Key
    """A hash of fleet, run, round and attempt: no key or share of another sum fits this one."""
    scale: FixedPoint
    length: Annotated[int, msgspec.Meta(ge=1, le=MAX_LENGTH)]
    """Values of an update; one more word has the weight."""
    degree: Annotated[int, msgspec.Meta(ge=2, le=MAX_NEIGHBOURS)]
    threshold: Annotated[int, msgspec.Meta(ge=2, le=MAX_NEIGHBOURS)]
    """Shares that open a secret. More than half of a device's neighbours, so that they cannot open both its secrets."""

    def __post_init__(self) -> None:
        if self.degree % 2:
            raise ValueError(f"degree = {self.degree}: allowed are even numbers, half of them on each side of the ring")
        most = min(self.degree, self.scale.devices - 1)
        if not most // 2 < self.threshold <= most:
            raise ValueError(f"threshold = {self.threshold} of {most} neighbours: allowed is {most // 2 + 1} to {most}")


class Advert(PrivateMessage, frozen=True):
    """A device's keys for one sum, signed with the key of its certificate."""

    device: Identifier
    mask_key: Key
    channel_key: Key
    commitment: Key
    """The hash of the seed of its own mask, which others will open: a wrong share is found out."""
    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE)] = b""


class Neighbourhood(PrivateMessage, frozen=True):
    """The keys of a device's neighbours."""

    adverts: Annotated[tuple[Advert, ...], msgspec.Meta(max_length=MAX_NEIGHBOURS)]


class SealedShares(PrivateMessage, frozen=True):
    """A device's shares, each sealed for the neighbour that is to hold it."""

    device: Identifier
    shares: Annotated[dict[Identifier, SealedShare], msgspec.Meta(max_length=MAX_NEIGHBOURS)]


class Delivery(PrivateMessage, frozen=True):
    """The sealed shares that a device is to hold, by the neighbours that made them."""

    shares: Annotated[dict[Identifier, SealedShare], msgspec.Meta(max_length=MAX_NEIGHBOURS)]


class OpeningRequest(PrivateMessage, frozen=True):
    """Which of a device's neighbours are in the sum, and which have left after they gave out shares."""

    present: Names
    lost: Names


class Opening(PrivateMessage, frozen=True):
    """A device's shares of the masks of those in the sum, and of the keys of those that are not."""

    device: Identifier
    seeds: Annotated[dict[Identifier, Share], msgspec.Meta(max_length=MAX_NEIGHBOURS)]
    keys: Annotated[dict[Identifier, Share], msgspec.Meta(max_length=MAX_NEIGHBOURS)]
