"""What can happen to a run, and what can be done about it: the vocabulary of the round state machine."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sparsyedge.edge.protocol.messages import Offer

__all__ = [
    "Accept",
    "AskToWait",
    "ChunkReceived",
    "CloseRound",
    "Command",
    "DeviceOffline",
    "DeviceOnline",
    "DeviceUnfit",
    "Event",
    "ExtendRound",
    "FailRun",
    "FinishRun",
    "GrantUpload",
    "Interrupted",
    "ModelReady",
    "OfferReceived",
    "OpenRound",
    "PauseRequested",
    "Quarantine",
    "RefusalKind",
    "Refuse",
    "Released",
    "ReplaceMember",
    "ResumeRequested",
    "StopRequested",
    "Tick",
    "UpdateInvalid",
    "UpdateVerified",
    "UploadComplete",
    "VerifyUpdate",
]


class RefusalKind(enum.StrEnum):
    """Why something that a device sent was not taken: counted by these, whatever words go with it."""

    UNREADABLE = "unreadable"
    """No message that a device sends."""
    FOREIGN = "foreign"
    """For another run, or from another model than the round's."""
    LATE = "late"
    """For a round that is not open."""
    NOT_ASKED = "not asked"
    """From a device that is not in the round's cohort."""
    REPEATED = "repeated"
    """A second update in one round."""
    TOO_LARGE = "too large"
    INVALID = "invalid"
    """An update that must not be averaged: cut, altered, not finite, too dense."""
    UNFINISHED = "unfinished"
    """An upload that did not end with its round."""
    REPORT = "report"
    """What a round cost, of a device that has no update in it."""
    FORGED = "forged"
    """An offer that the device did not sign."""
    REVOKED = "revoked"
    KEPT = "kept"
    """A message that the broker was asked to keep, though it only passes through."""


@dataclass(frozen=True)
class DeviceOnline:
    """A device is there; `boot_id` tells this start of it from earlier ones."""

    device: str
    boot_id: str


@dataclass(frozen=True)
class DeviceUnfit:
    """A device is there and will not train: in this round, or (0) until it says otherwise with DeviceOnline."""

    device: str
    boot_id: str
    round: int = 0


@dataclass(frozen=True)
class DeviceOffline:
    """The start of a device that has this boot id is over."""

    device: str
    boot_id: str


@dataclass(frozen=True)
class OfferReceived:
    """A device has an update and asks to send it."""

    device: str
    offer: Offer


@dataclass(frozen=True)
class ChunkReceived:
    """A part of a granted upload arrived."""

    device: str


@dataclass(frozen=True)
class UploadComplete:
    """All parts of a granted upload are here."""

    device: str
    update: str


@dataclass(frozen=True)
class UpdateVerified:
    """The update is what it claims to be and may be averaged."""

    device: str
    update: str


@dataclass(frozen=True)
class UpdateInvalid:
    """The update must not be averaged, and why."""

    device: str
    update: str
    reason: str


@dataclass(frozen=True)
class ModelReady:
    """The closed round is averaged, evaluated and recorded; `model` is the id of the result."""

    model: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class StopRequested:
    """Finish the run after the round that is open, which is completed and recorded."""


@dataclass(frozen=True)
class PauseRequested:
    """Open no round until ResumeRequested; the one that is open goes on to its end."""


@dataclass(frozen=True)
class ResumeRequested:
    """Open rounds again."""


@dataclass(frozen=True)
class Released:
    """Somebody lets a device out of quarantine."""

    device: str


@dataclass(frozen=True)
class Interrupted:
    """Finish the run now; a round that is open is given up."""


Event = (
    DeviceOnline
    | DeviceUnfit
    | DeviceOffline
    | OfferReceived
    | ChunkReceived
    | UploadComplete
    | UpdateVerified
    | UpdateInvalid
    | ModelReady
    | Tick
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | Released
    | Interrupted
)


@dataclass(frozen=True)
class OpenRound:
    """Announce the round to its cohort."""

    round: int
    cohort: tuple[str, ...]
    deadline_s: float


@dataclass(frozen=True)
class ExtendRound:
    """Announce the open round again, with another deadline and perhaps other members."""

    round: int
    cohort: tuple[str, ...]
    deadline_s: float
    extension: int


@dataclass(frozen=True)
class ReplaceMember:
    """Announce the open round again: `substitute` has taken the place of a member that will not train."""

    round: int
    cohort: tuple[str, ...]
    deadline_s: float
    device: str
    substitute: str


@dataclass(frozen=True)
class GrantUpload:
    """Tell the device which parts of the offered update to send."""

    device: str
    offer: Offer


@dataclass(frozen=True)
class VerifyUpdate:
    """Check the uploaded update and report UpdateVerified or UpdateInvalid."""

    device: str
    update: str


@dataclass(frozen=True)
class Accept:
    """Record the update durably, then acknowledge it; `again` where it is recorded already."""

    device: str
    round: int
    update: str
    again: bool = False


@dataclass(frozen=True)
class Refuse:
    """Count the refusal and tell the device the reason; `run` and `round` are those that the device named."""

    device: str
    round: int
    update: str
    reason: str
    run: str
    kind: RefusalKind


@dataclass(frozen=True)
class AskToWait:
    """Tell the device that others upload first, and why."""

    device: str
    offer: Offer
    reason: str


@dataclass(frozen=True)
class Quarantine:
    """Record that a device is left out until a round, and tell why; 0 lets it in again."""

    device: str
    until_round: int
    reason: str


@dataclass(frozen=True)
class CloseRound:
    """Average the updates of these devices in this order, evaluate, record, and report ModelReady."""

    round: int
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class FinishRun:
    """Tell the devices that the run is over and deliver its last model."""


@dataclass(frozen=True)
class FailRun:
    """Tell the devices that the run is over, and the user why."""

    reason: str


Command = (
    OpenRound
    | ExtendRound
    | ReplaceMember
    | Quarantine
    | GrantUpload
    | AskToWait
    | VerifyUpdate
    | Accept
    | Refuse
    | CloseRound
    | FinishRun
    | FailRun
)
