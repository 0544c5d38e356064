"""Where a run can stand: the states of the round state machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsyedge.coordinator.rounds.cohort import Policy
from sparsyedge.coordinator.rounds.conduct import Conduct, is_out

__all__ = ["Closing", "Failed", "Finished", "Granted", "Open", "Plan", "RunState", "Stage", "Waiting"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What does not change during a run."""

    run: str
    rounds: int
    cohort_size: int
    min_updates: int
    min_devices: int
    deadline_s: float | None
    """The same for all devices and rounds, or None where each device's own past decides."""
    seed: int
    max_update_bytes: int
    upload_bytes: int
    """Uploads in flight at a time, in bytes: what devices can make the broker and the coordinator hold."""
    policy: Policy = "uniform"
    over_selection: float = 0.0
    shares: tuple[int, ...] = ()
    """Of the method's groups of devices, each of which gets its share of every cohort."""
    first_round: int = 1
    """The round that waits for the whole fleet: that of the run, or the one from which it goes on for longer."""
    takes_turns: bool = False
    """Whether devices work one after the other, so that how long one took says nothing about another."""

    @property
    def asked(self) -> int:
        """How many devices are asked for `cohort_size` updates."""
        return math.ceil(self.cohort_size * (1 + self.over_selection))

    def devices_to_open(self, round_number: int) -> int:
        """How many devices must be online for a round; later ones wait only for who can still complete them."""
        return self.min_devices if round_number == self.first_round else self.min_updates


@dataclass(frozen=True)
class Granted:
    """An upload in progress."""

    update: str
    heard_s: float
    """When the last chunk came that was missing."""
    bytes: int = 0
    since_s: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """Too few devices are online for the round to open."""

    round: int
    model: str


@dataclass(frozen=True, kw_only=True)
class Open:
    """Devices train; `model` is the id of what they start from."""

    round: int
    model: str
    cohort: tuple[str, ...]
    opened_s: float
    deadlines: Mapping[str, float]
    """Until when each member is waited for."""
    extensions: int = 0
    replaced: frozenset[str] = frozenset()
    """Members that gave their place away: none of them comes back as a substitute in this round."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """How many updates of a member were refused: nobody waits for another one."""
    asked: Mapping[str, float] = field(default_factory=dict)
    """When each device that waits for a place to upload has last asked."""
    wasted: Mapping[str, int] = field(default_factory=dict)
    """How many places to upload a device has held without using them."""
    granted: Mapping[str, Granted] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """When nobody is waited for any more."""
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
    """Where a run stands."""

    plan: Plan
    stage: Stage
    online: Mapping[str, str] = field(default_factory=dict)
    """Boot id by device: a last will of an earlier start must not take a device away that has come back."""
    unfit: Mapping[str, int] = field(default_factory=dict)
    """Devices that are online and will not train: in the round given, or (0) until they say otherwise."""
    conduct: Mapping[str, Conduct] = field(default_factory=dict)
    """What went wrong with devices in the last rounds that they took part in."""
    left_s: Mapping[str, float] = field(default_factory=dict)
    """When each device that was online has left."""
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """How long each device took for its last updates."""
    missed: Mapping[str, int] = field(default_factory=dict)
    """The last round that each device was asked in and left without an update of it."""
    stopping: bool = False
    paused: bool = False
    closed_round: int = 0
    closed_accepted: Mapping[str, str] = field(default_factory=dict)
    """Hash by device of the round that closed last, for devices whose acknowledgement was lost."""

    @property
    def round(self) -> int:
        """The round that waits, is open or is being closed; the last one of a run that is over."""
        return self.stage.round if isinstance(self.stage, Waiting | Open | Closing) else self.closed_round

    @property
    def willing(self) -> frozenset[str]:
        """The devices that are online and will train."""
        return frozenset(self.online) - frozenset(self.unfit)

    @property
    def ready(self) -> frozenset[str]:
        """Those of them that are not in quarantine."""
        number = self.round
        return frozenset(device for device in self.willing if not is_out(self.conduct, device, round_number=number))
