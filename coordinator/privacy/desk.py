"""The coordinator's part in a private sum, stage by stage. No I/O; it learns the sum and no update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy import keys
from sparsyedge.edge.privacy.fixed_point import Words, unpack
from sparsyedge.edge.privacy.mask_stream import add_mask, take_mask
from sparsyedge.edge.privacy.member import Verify
from sparsyedge.edge.privacy.messages import (
    Advert,
    Delivery,
    Neighbourhood,
    Opening,
    OpeningRequest,
    SealedShares,
    SumTask,
)
from sparsyedge.edge.privacy.neighbours import neighbours
from sparsyedge.edge.privacy.secret_shares import join

__all__ = ["PrivateSum", "SumDesk"]

Stage = Literal["adverts", "shares", "updates", "openings", "over"]


@dataclass(frozen=True)
class PrivateSum:
    """The weighted mean of the updates that were summed."""

    mean: NDArray[np.float64]
    weight: int
    devices: tuple[str, ...]
    liars: tuple[str, ...]
    """Devices whose shares were wrong; the sum is right without them."""


@dataclass
class SumDesk:
    """Collects what devices send in one sum. A device that misses a stage is out; the rest goes on without it."""

    task: SumTask
    verify: Verify
    seed: bytes
    """Decides who is whose neighbour."""
    stage: Stage = "adverts"
    adverts: dict[str, Advert] = field(default_factory=dict)
    graph: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sealed: dict[str, SealedShares] = field(default_factory=dict)
    asked: dict[str, OpeningRequest] = field(default_factory=dict)
    openings: dict[str, Opening] = field(default_factory=dict)
    summed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.total: Words = np.zeros(self.task.length + 1, self.task.scale.dtype)

    # ---- keys --------------------------------------------------------------------------------------------------------

    def take_advert(self, advert: Advert) -> None:
        """A device's keys; raises SecurityError if it did not sign them, or has sent others."""
        self._at("adverts")
        if not self.verify(advert, keys.advert_content(self.task, advert)):
            raise SecurityError(f"the keys of {advert.device} are not signed by it")
        if self.adverts.setdefault(advert.device, advert) != advert:
            raise SecurityError(f"{advert.device} has sent two sets of keys for one sum")
        if len(self.adverts) > self.task.scale.devices:
            del self.adverts[advert.device]
            raise SecurityError(f"the sum is for {self.task.scale.devices} devices, and {advert.device} is one more")

    def begin_sharing(self) -> dict[str, Neighbourhood]:
        """For each device the keys of its neighbours; nobody else can join."""
        self._at("adverts")
        self._require(len(self.adverts) - 1, "devices have sent keys to any other")
        self.stage = "shares"
        self.graph = neighbours(self.adverts, self.task.degree, self.seed)
        return {
            device: Neighbourhood(adverts=tuple(self.adverts[other] for other in others))
            for device, others in self.graph.items()
        }

    # ---- shares ------------------------------------------------------------------------------------------------------

    def take_shares(self, message: SealedShares) -> None:
        """A device's sealed shares; raises SecurityError if they are not one for each neighbour."""
        self._at("shares")
        if message.device not in self.graph:
            raise SecurityError(f"{message.device} takes no part in this sum")
        if sorted(message.shares) != list(self.graph[message.device]):
            wanted = len(self.graph[message.device])
            raise SecurityError(f"the shares of {message.device} are not one for each of its {wanted} neighbours")
        self.sealed.setdefault(message.device, message)

    def begin_masking(self) -> dict[str, Delivery]:
        """For each device that has shared, what neighbours sealed for it; those with too few of these are left out."""
        self._at("shares")
        members = set(self.sealed)
        while few := {one for one in members if len(members.intersection(self.graph[one])) < self.task.threshold}:
            members -= few
        if not members:
            raise SecurityError(
                f"{len(self.sealed)} of {len(self.adverts)} devices have shared their secrets, too few for a sum "
                f"with {self.task.threshold} neighbours each; the round is to be repeated"
            )
        self.sealed = {device: self.sealed[device] for device in sorted(members)}
        self.stage = "updates"
        return {device: Delivery(shares=self._sealed_for(device)) for device in self.sealed}

    def _sealed_for(self, device: str) -> dict[str, bytes]:
        return {other: self.sealed[other].shares[device] for other in self.graph[device] if other in self.sealed}

    # ---- updates -----------------------------------------------------------------------------------------------------

    def take_update(self, device: str, payload: bytes) -> None:
        """Add a masked update; a second one of the same device changes nothing."""
        self._at("updates")
        if device not in self.sealed:
            raise SecurityError(f"{device} has shared no secrets, so its mask could not be taken off the sum")
        words = unpack(payload, self.task.scale, self.task.length + 1)
        if device not in self.summed:
            self.summed.add(device)
            np.add(self.total, words, out=self.total)

    def begin_opening(self) -> dict[str, OpeningRequest]:
        """For each device in the sum, whose mask it is to help open, and whose key."""
        self._at("updates")
        self._require(len(self.summed) - 1, "masked updates have come in besides any one")
        self.stage = "openings"
        for device in sorted(self.summed):
            around = self._sealed_for(device)
            present = tuple(other for other in around if other in self.summed)
            lost = tuple(other for other in around if other not in self.summed)
            self.asked[device] = OpeningRequest(present=present, lost=lost)
        return self.asked

    # ---- openings ----------------------------------------------------------------------------------------------------

    def take_opening(self, opening: Opening) -> None:
        """A device's shares; raises SecurityError if they are not those it was asked for."""
        self._at("openings")
        asked = self.asked.get(opening.device)
        if asked is None:
            raise SecurityError(f"{opening.device} is not in the sum, and has nothing to open")
        if tuple(sorted(opening.seeds)) != asked.present or tuple(sorted(opening.keys)) != asked.lost:
            raise SecurityError(f"{opening.device} opened other secrets than it was asked for")
        self.openings.setdefault(opening.device, opening)

    def finish(self) -> PrivateSum:
        """Take all masks off the sum; raises SecurityError naming a device whose secret too few have opened."""
        self._at("openings")
        total, liars = self.total.copy(), set[str]()
        for device in sorted(self.summed):
            take_mask(total, keys.own_mask_key(self.task, self._seed_of(device, liars)))
        for device in sorted(set(self.sealed) - self.summed):
            private = self._key_of(device, liars)
            for other in self._sealed_for(device):
                if other in self.summed:
                    secret = keys.mask_secret(self.task, private, self.adverts[other].mask_key)
                    (take_mask if other < device else add_mask)(total, secret)
        mean, weight = self.task.scale.decode(_reduced(total, self.task), len(self.summed))
        self.stage = "over"
        return PrivateSum(mean=mean, weight=weight, devices=tuple(sorted(self.summed)), liars=tuple(sorted(liars)))

    def _seed_of(self, device: str, liars: set[str]) -> bytes:
        shares = {one: opening.seeds[device] for one, opening in self.openings.items() if device in opening.seeds}
        committed = self.adverts[device].commitment
        return self._join(
            device, shares, lambda seed: keys.commitment_of(self.task, device, seed) == committed, liars, "mask"
        )

    def _key_of(self, device: str, liars: set[str]) -> bytes:
        shares = {one: opening.keys[device] for one, opening in self.openings.items() if device in opening.keys}
        if not any(other in self.summed for other in self._sealed_for(device)):
            return bytes(32)
        public = self.adverts[device].mask_key
        return self._join(device, shares, lambda private: keys.public_of(private) == public, liars, "key")

    def _join(
        self, device: str, shares: Mapping[str, bytes], is_right: Callable[[bytes], bool], liars: set[str], what: str
    ) -> bytes:
        # A device gives its neighbours places in the order of their names.
        holders = dict(enumerate(self.graph[device], start=1))
        points = {place: shares[holder] for place, holder in holders.items() if holder in shares}
        secret, wrong = None, tuple[int, ...]()
        if len(points) >= self.task.threshold:
            secret, wrong = join(points, self.task.threshold, is_right)
        if secret is None:
            raise SecurityError(
                f"the {what} of {device} stays closed: {len(points)} of {len(holders)} neighbours have opened shares "
                f"of it, {self.task.threshold} right ones are needed; the round is to be repeated"
            )
        liars.update(holders[place] for place in wrong)
        return secret

    def _require(self, count: int, what: str) -> None:
        if count < self.task.threshold:
            raise SecurityError(f"{count} {what}, {self.task.threshold} are needed; the round is to be repeated")

    def _at(self, stage: Stage) -> None:
        if self.stage != stage:
            raise SecurityError(f"the sum is at its {self.stage}, and takes no {stage}")


def _reduced(total: Words, task: SumTask) -> Words:
    """The total modulo the words' own size."""
    return total & total.dtype.type((1 << (8 * task.scale.word_bytes)) - 1)
