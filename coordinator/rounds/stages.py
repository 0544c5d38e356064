"""The states of the round state machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsyedge.coordinator.rounds.cohort import Policy
from sparsyedge.coordinator.rounds.conduct import Conduct, is_out

__all__ = ["Closing", "Failed", "Finished", "Granted", "Open", "Plan", "RunState", "Stage", "Waiting"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run that stay fixed."""

    run: str
    rounds: int
    cohort_size: int
    min_updates: int
    min_devices: int
    deadline_s: float | None
    """One deadline for all devices and rounds; None learns each device's deadline from its past."""
    seed: int
    max_update_bytes: int
    upload_bytes: int
    """Limit on uploads in flight, in bytes. It bounds what devices can make the broker and the coordinator hold."""
    policy: Policy = "uniform"
    over_selection: float = 0.0
    shares: tuple[int, ...] = ()
    """Each device group's share of every cohort, as the method sets it."""
    first_round: int = 1
    """The round that waits for `min_devices`: round 1, or the first one after `rounds` changed."""
    takes_turns: bool = False
    """Whether devices work one after the other; then one device's time says nothing about another's."""

    @property
    def asked(self) -> int:
        """How many devices to ask for `cohort_size` updates."""
        return math.ceil(self.cohort_size * (1 + self.over_selection))

    def devices_to_open(self, round_number: int) -> int:
        """How many devices must be online to open a round; later rounds need only enough to complete."""
        return self.min_devices if round_number == self.first_round else self.min_updates


@dataclass(frozen=True)
class Granted:
    """An upload in progress."""

    update: str
    heard_s: float
    """When the last missing chunk arrived."""
    bytes: int = 0
    since_s: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """Too few devices are online for the round to open."""

    round: int
    model: str


@dataclass(frozen=True, kw_only=True)
class Open:
    """Devices train from the model with the id `model`."""

    round: int
    model: str
    cohort: tuple[str, ...]
    opened_s: float
    deadlines: Mapping[str, float]
    """When the round stops waiting for each member."""
    extensions: int = 0
    replaced: frozenset[str] = frozenset()
    """Members that lost their place; none of them returns as a substitute in this round."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Updates refused per member; the round does not wait for another one."""
    asked: Mapping[str, float] = field(default_factory=dict)
    """When each device waiting for an upload place last asked."""
    wasted: Mapping[str, int] = field(default_factory=dict)
    """How many upload places each device wasted."""
    granted: Mapping[str, Granted] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """The latest deadline of any member."""
        return max(self.deadlines.values(), default=self.opened_s)


@dataclass(frozen=True)
class Closing:
    """The accepted updates are being averaged."""

    round: int


@dataclass(frozen=True)
class Finished:
    """The run is over and has a model."""


@dataclass(frozen=True)
class Failed:
    """The run is over because a round could not be completed."""

    reason: str


Stage = Waiting | Open | Closing | Finished | Failed


@dataclass(frozen=True)
class RunState:
    """The full state of a run."""

    plan: Plan
    stage: Stage
    online: Mapping[str, str] = field(default_factory=dict)
    """Boot id by device. It keeps the last will of an earlier boot from removing a device that is back."""
    unfit: Mapping[str, int] = field(default_factory=dict)
    """Devices that are online but will not train: in the given round, or (0) until they say otherwise."""
    conduct: Mapping[str, Conduct] = field(default_factory=dict)
    """Recent failures by device."""
    left_s: Mapping[str, float] = field(default_factory=dict)
    """When each device last went offline."""
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """How long each device took for its last updates."""
    missed: Mapping[str, int] = field(default_factory=dict)
    """The last round in which each device was asked and sent no update."""
    stopping: bool = False
    paused: bool = False
    closed_round: int = 0
    closed_accepted: Mapping[str, str] = field(default_factory=dict)
    """Update hashes of the last closed round, by device; answers devices that missed our acknowledgement."""

    @property
    def round(self) -> int:
        """The round that is waiting, open or closing; the last closed round once the run is over."""
        return self.stage.round if isinstance(self.stage, Waiting | Open | Closing) else self.closed_round

    @property
    def willing(self) -> frozenset[str]:
        """Devices that are online and fit."""
        return frozenset(self.online) - frozenset(self.unfit)

    @property
    def ready(self) -> frozenset[str]:
        """Willing devices that are not in quarantine."""
        number = self.round
        return frozenset(device for device in self.willing if not is_out(self.conduct, device, round_number=number))
