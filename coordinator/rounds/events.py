"""Events and commands of the round state machine."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsyedge.coordinator.rounds.past import Past
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
    """Why we refused something a device sent. Refusals are counted by kind, whatever the wording of the reason."""

    UNREADABLE = "unreadable"
    """Not a valid device message."""
    FOREIGN = "foreign"
    """For another run, or based on a model other than the round's."""
    LATE = "late"
    """For a round that is not open."""
    NOT_ASKED = "not asked"
    """From a device outside the round's cohort."""
    REPEATED = "repeated"
    """A second update in one round."""
    TOO_LARGE = "too large"
    INVALID = "invalid"
    """An update we must not average: truncated, altered, not finite, too dense."""
    UNFINISHED = "unfinished"
    """An upload still incomplete when its round closed."""
    REPORT = "report"
    """A cost report from a device without an accepted update in that round."""
    FORGED = "forged"
    """An offer without the device's valid signature."""
    REVOKED = "revoked"
    KEPT = "kept"
    """A retained message on a topic that must not be retained."""


@dataclass(frozen=True)
class DeviceOnline:
    """A device is online; `boot_id` tells this boot from earlier ones."""

    device: str
    boot_id: str
    classes: bytes = b""
    """What it has of each class, in proportion; empty if it does not say."""


@dataclass(frozen=True)
class DeviceUnfit:
    """A device is online but will not train: in this round, or (0) until DeviceOnline."""

    device: str
    boot_id: str
    round: int = 0


@dataclass(frozen=True)
class DeviceOffline:
    """The device's boot with this id has ended."""

    device: str
    boot_id: str


@dataclass(frozen=True)
class OfferReceived:
    """A device has an update and asks to send it."""

    device: str
    offer: Offer


@dataclass(frozen=True)
class ChunkReceived:
    """A chunk of a granted upload arrived."""

    device: str


@dataclass(frozen=True)
class UploadComplete:
    """All chunks of a granted upload are here."""

    device: str
    update: str


@dataclass(frozen=True)
class UpdateVerified:
    """The update passed all checks and may be averaged."""

    device: str
    update: str


@dataclass(frozen=True)
class UpdateInvalid:
    """The update failed a check and must not be averaged; `reason` says why."""

    device: str
    update: str
    reason: str


@dataclass(frozen=True)
class ModelReady:
    """The closed round is averaged, evaluated and recorded; `model` is the id of the result."""

    model: str
    past: Mapping[str, Past] = field(default_factory=dict)
    """What is on record of devices now, for a policy that chooses by it."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class StopRequested:
    """Complete and record the open round, then finish the run."""


@dataclass(frozen=True)
class PauseRequested:
    """Open no new round until ResumeRequested; the open round runs to its end."""


@dataclass(frozen=True)
class ResumeRequested:
    """Open rounds again."""


@dataclass(frozen=True)
class Released:
    """The operator releases a device from quarantine."""

    device: str


@dataclass(frozen=True)
class Interrupted:
    """Finish the run now and abandon the open round."""


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
    """Announce the open round again, soon: `substitute` replaces a member that will not deliver."""

    round: int
    deadline_s: float
    device: str
    substitute: str


@dataclass(frozen=True)
class GrantUpload:
    """Tell the device which chunks of the offered update to send."""

    device: str
    offer: Offer


@dataclass(frozen=True)
class VerifyUpdate:
    """Check the uploaded update and report UpdateVerified or UpdateInvalid."""

    device: str
    update: str


@dataclass(frozen=True)
class Accept:
    """Record the update durably, then acknowledge it; `again` means it is already recorded."""

    device: str
    round: int
    update: str
    again: bool = False


@dataclass(frozen=True)
class Refuse:
    """Count the refusal and tell the device the reason; `run` and `round` are the ones the device named."""

    device: str
    round: int
    update: str
    reason: str
    run: str
    kind: RefusalKind


@dataclass(frozen=True)
class AskToWait:
    """Tell the device that others upload first, with the reason."""

    device: str
    offer: Offer
    reason: str
    again_s: float | None = None
    """How long it need not ask again, since it is called in its turn; None if it is to blame, and is not called."""


@dataclass(frozen=True)
class Quarantine:
    """Record that a device is in quarantine until the given round, with the reason; 0 releases it."""

    device: str
    until_round: int
    reason: str


@dataclass(frozen=True)
class CloseRound:
    """Average these devices' updates in this order, evaluate, record, and report ModelReady."""

    round: int
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class FinishRun:
    """Tell the devices that the run is over and deliver its last model."""


@dataclass(frozen=True)
class FailRun:
    """Tell the devices that the run is over, and tell the user why."""

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
