"""A device's part in a private sum. No I/O; its state is a struct that can be stored between any two calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

import msgspec

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.privacy import keys
from sparsyedge.edge.privacy.fixed_point import Words, pack
from sparsyedge.edge.privacy.mask_stream import add_mask, take_mask
from sparsyedge.edge.privacy.messages import (
    Advert,
    Delivery,
    Neighbourhood,
    Opening,
    OpeningRequest,
    SealedShares,
    SumTask,
)
from sparsyedge.edge.privacy.secret_shares import SHARE_BYTES, split

__all__ = ["Member", "MemberState", "Verify"]

Verify = Callable[[Advert, bytes], bool]
"""Whether a device's certificate signed these bytes with the advert's signature."""
Stage = Literal["advertised", "shared", "masked", "opened"]


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """All that a device must keep until a sum is over. It has secrets: never log it, store it for its owner alone."""

    task: SumTask
    device: str
    mask_private: bytes
    channel_private: bytes
    seed: bytes
    stage: Stage = "advertised"
    neighbours: dict[str, Advert] = {}
    held: dict[str, bytes] = {}
    """The shares of each neighbour that takes part: of its seed, then of its key."""


class Member:
    """One device in one sum; it goes through the stages once, and forwards only."""

    def __init__(self, state: MemberState) -> None:
        self.state = state

    @classmethod
    def begin(cls, task: SumTask, device: str, draw: Callable[[int], bytes] = secrets.token_bytes) -> Member:
        """A device with fresh keys."""
        return cls(
            MemberState(task=task, device=device, mask_private=draw(32), channel_private=draw(32), seed=draw(32))
        )

    def advert(self, sign: Callable[[bytes], bytes]) -> Advert:
        """The device's public keys, signed."""
        state = self.state
        advert = Advert(
            device=state.device,
            mask_key=keys.public_of(state.mask_private),
            channel_key=keys.public_of(state.channel_private),
            commitment=keys.commitment_of(state.task, state.device, state.seed),
        )
        return msgspec.structs.replace(advert, signature=sign(keys.advert_content(state.task, advert)))

    def share(self, neighbourhood: Neighbourhood, verify: Verify) -> SealedShares:
        """Shares of both secrets for the neighbours; raises SecurityError if one of these is not a member."""
        state = self._at("advertised")
        adverts = {advert.device: advert for advert in neighbourhood.adverts}
        if len(adverts) != len(neighbourhood.adverts) or state.device in adverts:
            raise SecurityError("the neighbours that the coordinator names are not different devices")
        self._require_enough(len(adverts), "are neighbours")
        if len(adverts) > min(state.task.degree, state.task.scale.devices - 1):
            raise SecurityError(f"the coordinator names {len(adverts)} neighbours, the task allows {state.task.degree}")
        for device, advert in adverts.items():
            if not verify(advert, keys.advert_content(state.task, advert)):
                raise SecurityError(f"the keys of {device} are not signed by it")
        # Sorted, so that everybody gives a neighbour the same place.
        places = {device: place for place, device in enumerate(sorted(adverts), start=1)}
        seeds = split(state.seed, list(places.values()), state.task.threshold)
        private = split(state.mask_private, list(places.values()), state.task.threshold)
        self._move("shared", neighbours=adverts)
        sealed = {
            device: keys.seal_shares(
                state.task,
                state.channel_private,
                adverts[device].channel_key,
                sender=state.device,
                receiver=device,
                shares=seeds[place] + private[place],
            )
            for device, place in places.items()
        }
        return SealedShares(device=state.device, shares=sealed)

    def mask(self, delivery: Delivery, words: Words) -> bytes:
        """The masked update; `words` come from the task's scale, and are masked in place."""
        state = self._at("shared")
        task = state.task
        if words.size != task.length + 1:
            raise SecurityError(f"an update has {words.size - 1} values, the sum is of {task.length}")
        strangers = sorted(set(delivery.shares) - set(state.neighbours))
        if strangers:
            raise SecurityError(f"{strangers[0]} is no neighbour, and its shares are not held")
        self._require_enough(len(delivery.shares), "have sent shares")
        held = {sender: self._open(sender, sealed) for sender, sealed in sorted(delivery.shares.items())}
        self._move("masked", held=held)
        add_mask(words, keys.own_mask_key(task, state.seed))
        for sender in held:
            secret = keys.mask_secret(task, state.mask_private, state.neighbours[sender].mask_key)
            (add_mask if state.device < sender else take_mask)(words, secret)
        return pack(words, task.scale.word_bytes)

    def open(self, request: OpeningRequest) -> Opening:
        """One share of each neighbour: of its seed if it is in the sum, else of its key; never of both."""
        state = self._at("masked")
        present, lost = set(request.present), set(request.lost)
        if present & lost:
            raise SecurityError(f"{min(present & lost)} cannot both be in the sum and have left")
        if strangers := sorted((present | lost) - set(state.held)):
            raise SecurityError(f"no shares of {strangers[0]} are held")
        self._require_enough(len(present), "are in the sum")
        self._move("opened")
        return Opening(
            device=state.device,
            seeds={device: state.held[device][:SHARE_BYTES] for device in sorted(present)},
            keys={device: state.held[device][SHARE_BYTES:] for device in sorted(lost)},
        )

    def _open(self, sender: str, sealed: bytes) -> bytes:
        state = self.state
        return keys.open_shares(
            state.task,
            state.channel_private,
            state.neighbours[sender].channel_key,
            sender=sender,
            receiver=state.device,
            sealed=sealed,
        )

    def _require_enough(self, count: int, what: str) -> None:
        threshold = self.state.task.threshold
        if count < threshold:
            raise SecurityError(f"only {count} devices {what} around {self.state.device}, {threshold} are needed")

    def _at(self, stage: Stage) -> MemberState:
        if self.state.stage != stage:
            raise SecurityError(
                f"{self.state.device} has {self.state.stage} already: another sum needs another attempt with new keys"
            )
        return self.state

    def _move(self, stage: Stage, **fields: object) -> None:
        self.state = msgspec.structs.replace(self.state, stage=stage, **fields)
