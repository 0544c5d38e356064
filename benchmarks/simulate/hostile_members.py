"""Simulated devices that attack their run: real agents with a forged session, data or claim.

Honest code makes everything such a device sends: it prunes to the budget, encodes with feedback, offers, and uploads in
chunks. So the coordinator accepts the attack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from sparsyedge.edge.data import Labels, Samples
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.model.artifacts import Artifacts, FileRole
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.messages import Accepted, Offer, Refused
from sparsyedge.edge.tensors import FloatArray, State, Tensors
from sparsyedge.edge.training.augment import Mixed
from sparsyedge.edge.training.job_inputs import NO_INPUTS, JobInputs
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.session_holder import SessionHolder

__all__ = ["ATTACKS", "Attack"]

CLAIM = 10**9

Forge = Callable[[State, State, int], State]
"""Turns the round's start model, the trained model and a seed into the model that the device claims it trained."""


@dataclass(frozen=True)
class Attack:
    """What a hostile member does; in everything else it is honest."""

    summary: str
    flips_labels: bool = False
    forge: Forge | None = None
    claim: int | None = None

    def poison(self, samples: Samples) -> Samples:
        """Its training data."""
        return Samples(samples.x, samples.y.max() - samples.y) if self.flips_labels else samples

    def courier(self, channel: Channel, member: Member) -> Courier:
        """The courier that sends its offers."""
        return Courier(channel, member) if self.claim is None else ClaimingCourier(channel, member, self.claim)

    def holder(self, honest: SessionHolder, device: str) -> SessionHolder:
        """The holder of its training sessions."""
        return honest if self.forge is None else ForgingWorkbench(honest, self.forge, device)


class ClaimingCourier(Courier):
    """Claims a false number of samples in its offers."""

    def __init__(self, channel: Channel, member: Member, claim: int) -> None:
        super().__init__(channel, member)
        self._claim = claim

    def deliver(self, offer: Offer, frame: bytes, *, wanted: Callable[[], bool]) -> Accepted | Refused:
        return super().deliver(msgspec.structs.replace(offer, samples=self._claim), frame, wanted=wanted)


class ForgingWorkbench(SessionHolder):
    """An honest device's holder, except that its sessions return a forged model."""

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

    def session(self, model: Tensors | None, *, round_number: int) -> Session:
        session = self._honest.session(model, round_number=round_number)
        start = session.state() if model is None else dict(model)
        seed = int.from_bytes(hashlib.sha256(f"{self._device}/{round_number}".encode()).digest()[:8], "big")
        return ForgingSession(session, start, self._forge, seed)

    def rest(self) -> None:
        self._honest.rest()


class ForgingSession:
    """Trains honestly, but returns a forged model."""

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

    def optimizer_state(self) -> State:
        return self._honest.optimizer_state()

    def load_optimizer_state(self, state: Mapping[str, FloatArray]) -> None:
        self._honest.load_optimizer_state(state)

    def rest(self) -> None:
        self._honest.rest()

    def train_step(
        self,
        x: FloatArray,
        y: Labels,
        learning_rate: float,
        mixed: Mixed | None = None,
        seed: int = 0,
        inputs: JobInputs = NO_INPUTS,
    ) -> float:
        return self._honest.train_step(x, y, learning_rate, mixed, seed, inputs)


def flip(times: float) -> Forge:
    """Flip the sign of the change and scale it."""

    def forge(start: State, trained: State, seed: int) -> State:
        flipped = {
            name: (start[name] - np.float32(times) * (tensor - start[name])).astype(np.float32)
            for name, tensor in trained.items()
        }
        return _plausible(flipped)

    return forge


def random_values(start: State, trained: State, seed: int) -> State:
    """Random numbers of magnitude one for the weights that are still non-zero."""
    drawn = random_model(start, trained, seed)
    return {name: np.where(trained[name] == 0, np.float32(0), tensor) for name, tensor in drawn.items()}


def random_model(start: State, trained: State, seed: int) -> State:
    """Random numbers for all weights; pruning them gives a mask unlike the others'."""
    generator = np.random.default_rng(seed)
    return _plausible(
        {name: generator.standard_normal(tensor.shape, dtype=np.float32) for name, tensor in trained.items()}
    )


def _plausible(state: State) -> State:
    """Remove negative variances; the coordinator would refuse them."""
    return {name: np.maximum(tensor, 0) if name.endswith("running_var") else tensor for name, tensor in state.items()}


ATTACKS: dict[str, Attack] = {
    "sign-1": Attack("sends its change turned round", forge=flip(1.0)),
    "sign-9": Attack("sends nine times its change, turned round", forge=flip(9.0)),
    "labels": Attack("trains with label 9 - y in place of y", flips_labels=True),
    "claims": Attack("claims 10^9 samples for random numbers", forge=random_values, claim=CLAIM),
    "masks": Attack("the same, and prunes what the others keep", forge=random_model, claim=CLAIM),
}
"""By name, as `--attacks` takes them."""
