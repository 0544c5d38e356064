"""Where a run can stand: the states of the round state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Closing", "Failed", "Finished", "Granted", "Open", "Plan", "RunState", "Stage", "Waiting"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What does not change during a run."""

    run: str
    rounds: int
    cohort_size: int
    min_updates: int
    min_devices: int
    deadline_s: float
    seed: int
    max_update_bytes: int
    max_uploads: int
    """Uploads in flight at a time; bounds the memory that devices can make the coordinator take."""
    shares: tuple[int, ...] = ()
    """Of the method's groups of devices, each of which gets its share of every cohort."""


@dataclass(frozen=True)
class Granted:
    """An upload in progress."""

    update: str
    heard_s: float


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
    deadline_s: float
    extensions: int = 0
    granted: Mapping[str, Granted] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)


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
    stopping: bool = False
    closed_round: int = 0
    closed_accepted: Mapping[str, str] = field(default_factory=dict)
    """Hash by device of the round that closed last, for devices whose acknowledgement was lost."""
