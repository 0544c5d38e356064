"""Simulated devices that attack their run: real agents, whose session, data or claims are not what they should be.

Everything that leaves such a device is made by the code of honest ones: pruned to the budget, encoded with feedback,
offered and uploaded in chunks. So an attack is one that the coordinator accepts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data import Samples
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.model.artifacts import Artifacts, FileRole
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.messages import Accepted, Offer, Refused
from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.session_holder import SessionHolder

__all__ = ["ATTACKS", "Attack"]

CLAIM = 10**9

Forge = Callable[[State, State, int], State]
"""From the model that a round began with, the trained one and a seed to what is said to be trained."""


@dataclass(frozen=True)
class Attack:
    """What a hostile member does; the rest of it is as honest as any."""

    summary: str
    flips_labels: bool = False
    forge: Forge | None = None
    claim: int | None = None

    def poison(self, samples: Samples) -> Samples:
        """The data that it trains on."""
        return Samples(samples.x, samples.y.max() - samples.y) if self.flips_labels else samples

    def courier(self, channel: Channel, member: Member) -> Courier:
        """What speaks for it."""
        return Courier(channel, member) if self.claim is None else ClaimingCourier(channel, member, self.claim)

    def holder(self, honest: SessionHolder, device: str) -> SessionHolder:
        """Where it trains."""
        return honest if self.forge is None else ForgingWorkbench(honest, self.forge, device)


class ClaimingCourier(Courier):
    """Offers updates as those of another number of samples."""

    def __init__(self, channel: Channel, member: Member, claim: int) -> None:
        super().__init__(channel, member)
        self._claim = claim

    def deliver(self, offer: Offer, frame: bytes, *, wanted: Callable[[], bool]) -> Accepted | Refused:
        return super().deliver(msgspec.structs.replace(offer, samples=self._claim), frame, wanted=wanted)


class ForgingWorkbench(SessionHolder):
    """A holder of honest devices whose sessions say something else than what was trained."""

    def __init__(self, honest: SessionHolder, forge: Forge, device: str) -> None:
        self.lock = honest.lock
        self._honest = honest
        self._forge = forge
        self._device = device

    @property
    def roles(self) -> tuple[FileRole, ...]:
        return self._honest.roles

    def artifacts(self, manifest_sha256: str) -> Artifacts | None:
        return self._honest.artifacts(manifest_sha256)

    def put(self, artifacts: Artifacts, manifest_sha256: str) -> None:
        self._honest.put(artifacts, manifest_sha256)

    def session(self, model: State | None, *, round_number: int) -> Session:
        session = self._honest.session(model, round_number=round_number)
        start = session.state() if model is None else model
        seed = int.from_bytes(hashlib.sha256(f"{self._device}/{round_number}".encode()).digest()[:8], "big")
        return ForgingSession(session, start, self._forge, seed)


class ForgingSession:
    """Trains as it is told to, and has something else to show."""

    def __init__(self, honest: Session, start: State, forge: Forge, seed: int) -> None:
        self.kind = honest.kind
        self._honest = honest
        self._start = start
        self._forge = forge
        self._seed = seed

    def load(self, state: Mapping[str, FloatArray]) -> None:
        self._honest.load(state)

    def state(self) -> State:
        return self._forge(self._start, self._honest.state(), self._seed)

    def train_step(self, x: FloatArray, y: NDArray[np.int64], learning_rate: float) -> float:
        return self._honest.train_step(x, y, learning_rate)


def flip(times: float) -> Forge:
    """The change turned round and made larger."""

    def forge(start: State, trained: State, seed: int) -> State:
        flipped = {
            name: (start[name] - np.float32(times) * (tensor - start[name])).astype(np.float32)
            for name, tensor in trained.items()
        }
        return _plausible(flipped)

    return forge


def random_values(start: State, trained: State, seed: int) -> State:
    """Random numbers of the size of one for the weights that training left."""
    drawn = random_model(start, trained, seed)
    return {name: np.where(trained[name] == 0, np.float32(0), tensor) for name, tensor in drawn.items()}


def random_model(start: State, trained: State, seed: int) -> State:
    """Random numbers for all weights: what is left of them when they are pruned is a mask of its own."""
    generator = np.random.default_rng(seed)
    return _plausible(
        {name: generator.standard_normal(tensor.shape, dtype=np.float32) for name, tensor in trained.items()}
    )


def _plausible(state: State) -> State:
    """Without negative variances, for which an update would be refused."""
    return {name: np.maximum(tensor, 0) if name.endswith("running_var") else tensor for name, tensor in state.items()}


ATTACKS: dict[str, Attack] = {
    "sign-1": Attack("sends its change turned round", forge=flip(1.0)),
    "sign-9": Attack("sends nine times its change, turned round", forge=flip(9.0)),
    "labels": Attack("trains with label 9 - y in place of y", flips_labels=True),
    "claims": Attack("claims 10^9 samples for random numbers", forge=random_values, claim=CLAIM),
    "masks": Attack("the same, and prunes what the others keep", forge=random_model, claim=CLAIM),
}
"""By name, as `--attacks` takes them."""
