"""The states of the round state machine.

Every event makes a new state, and there are several events per device: none may copy or go through a table of devices.
So tables share what stays (table.py), and counts, sums and the next thing to look at are kept beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sparsyedge.coordinator.rounds.cohort import FROM_RECORDS, Policy
from sparsyedge.coordinator.rounds.conduct import Conduct, is_out
from sparsyedge.coordinator.rounds.heap import Heap
from sparsyedge.coordinator.rounds.past import Past
from sparsyedge.coordinator.rounds.spares import Spares
from sparsyedge.coordinator.rounds.table import Table

__all__ = ["Closing", "Failed", "Finished", "Granted", "Open", "Plan", "RunState", "Stage", "Waiting", "replace"]

State = TypeVar("State")

if TYPE_CHECKING:
    from dataclasses import replace
else:

    def replace(state: State, /, **changes: Any) -> State:
        """The state with other values for some fields: `dataclasses.replace` for the states here, ten times as fast."""
        changed = object.__new__(type(state))
        changed.__dict__.update(state.__dict__, **changes)
        return changed


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
    def policy_of_spares(self) -> Policy:
        """Who takes the place of a member that will not answer; turns go by name, everything else by lot."""
        return "uniform" if self.policy == "balanced" or self.policy in FROM_RECORDS else self.policy

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
    verifying: bool = False
    """Whether all of it is here and being checked: then the device has nothing left to do."""


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
    opened_s: float
    deadlines: Table[float]
    """When the round stops waiting for each member: the cohort is who is in here."""
    deadline_s: float
    """The latest deadline of any member."""
    latest: int
    """How many members have that deadline."""
    due: Heap[tuple[float, str]] = field(repr=False, compare=False)
    """Deadlines that have not passed yet, some of them of former members."""
    extensions: int = 0
    replaced: Table[str] = field(default_factory=Table)
    """Members that lost their place, and to whom; none of them returns as a substitute in this round."""
    suspects: Table[None] = field(default_factory=Table)
    """Every member that was unfit, had an update refused or is past its deadline: nobody else can be lost."""
    spares: Spares | None = field(default=None, repr=False, compare=False)
    """Who could replace a member; None until somebody asks."""
    failed: Table[int] = field(default_factory=Table)
    """Updates refused per member; the round does not wait for another one."""
    asked: Table[float] = field(default_factory=Table)
    """Until when each device that asked for an upload place counts as waiting for it."""
    wasted: Table[int] = field(default_factory=Table)
    """How many upload places each device wasted."""
    granted: Table[Granted] = field(default_factory=Table)
    granted_bytes: int = 0
    """The sum over `granted`."""
    used_until_s: float = math.inf
    """No upload place is wasted before this time."""
    verifying: int = 0
    """How many uploads are being checked; the round goes on as it is until that is done."""
    accepted: Table[str] = field(default_factory=Table)
    slowest_s: float = 0.0
    """How long the slowest accepted update took."""
    awaited: str = ""
    """A member that the round was waiting for when we last looked."""

    @property
    def cohort(self) -> tuple[str, ...]:
        """The members in the order of their names; sorts them."""
        return tuple(sorted(self.deadlines))


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
    online: Table[str] = field(default_factory=Table)
    """Boot id by device. It keeps the last will of an earlier boot from removing a device that is back."""
    classes: Table[bytes] = field(default_factory=Table)
    """What each device has of each class, where it says so."""
    past: Mapping[str, Past] = field(default_factory=dict)
    """What was on record of devices when the last round closed; empty if the plan's policy does not ask for it."""
    unfit: Table[int] = field(default_factory=Table)
    """Devices that are online but will not train: in the given round, or (0) until they say otherwise."""
    conduct: Table[Conduct] = field(default_factory=Table)
    """Recent failures by device."""
    left_s: Table[float] = field(default_factory=Table)
    """When each device last went offline."""
    times: Table[tuple[float, ...]] = field(default_factory=Table)
    """How long each device took for its last updates."""
    missed: Table[int] = field(default_factory=Table)
    """The last round in which each device was asked and sent no update."""
    stopping: bool = False
    paused: bool = False
    closed_round: int = 0
    closed_accepted: Table[str] = field(default_factory=Table)
    """Update hashes of the last closed round, by device; answers devices that missed our acknowledgement."""

    @property
    def round(self) -> int:
        """The round that is waiting, open or closing; the last closed round once the run is over."""
        return self.stage.round if isinstance(self.stage, Waiting | Open | Closing) else self.closed_round

    def is_willing(self, device: str) -> bool:
        """Whether the device is online and fit."""
        return device in self.online and device not in self.unfit

    def is_ready(self, device: str) -> bool:
        """Whether the device is willing and not in quarantine."""
        return self.is_willing(device) and not is_out(self.conduct, device, round_number=self.round)

    @property
    def ready_count(self) -> int:
        """How many devices are ready; goes through those with a record of failures."""
        out = (device for device in self.conduct if is_out(self.conduct, device, round_number=self.round))
        return len(self.online) - len(self.unfit) - sum(self.is_willing(device) for device in out)

    @property
    def willing(self) -> frozenset[str]:
        """Devices that are online and fit."""
        return frozenset(self.online) - frozenset(self.unfit)

    @property
    def ready(self) -> frozenset[str]:
        """Willing devices that are not in quarantine."""
        number = self.round
        return frozenset(device for device in self.willing if not is_out(self.conduct, device, round_number=number))
