"""Which versions each side speaks, and which side to upgrade if they share none. No I/O.

docs/reference/protocol.md has the rule. In short: readers ignore unknown fields. A field that a reader must not ignore
comes with a feature, named in `needs`; a reader without that feature refuses the whole message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from sparsyedge.edge.errors import FrameError, VersionError
from sparsyedge.edge.text import MAX_TEXT, one_line

__all__ = [
    "CALIBRATED_JOULES",
    "CLASS_SHARES",
    "DEVICE_EVALUATION",
    "FIRST",
    "HTTP_BLOBS",
    "OURS",
    "RELEASES",
    "Demand",
    "Feature",
    "Features",
    "Span",
    "Speaks",
    "VersionNumber",
    "missing_feature",
    "own_software",
    "read_demand",
    "require_understood",
    "which_upgrade",
]

MAX_FEATURES = 64
MAX_SOFTWARE = 35
"""Longest software name in a sentence, in characters; both sides' names must fit."""

VersionNumber = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Feature = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}\Z")]
Features = Annotated[tuple[Feature, ...], msgspec.Meta(max_length=MAX_FEATURES)]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A range of readable versions, both ends included; `[oldest, newest]` in JSON."""

    oldest: VersionNumber
    newest: VersionNumber

    def __post_init__(self) -> None:
        if self.oldest > self.newest:
            raise ValueError(f"the oldest version, {self.oldest}, is above the newest, {self.newest}")

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


class Speaks(msgspec.Struct, frozen=True, kw_only=True):
    """What one side reads. Devices announce it in their status, coordinators in the task. Its fields never change."""

    protocol: Span
    manifest: Span
    features: Features = ()


FIRST = Speaks(protocol=Span(1, 1), manifest=Span(5, 5))
"""Stands in for a status that announces nothing: the first release."""
CALIBRATED_JOULES = "calibrated-joules"
"""A coordinator that has it takes reports whose joules are `calibrated`."""
HTTP_BLOBS = "http-blobs"
"""A task that needs it has its blobs on a web server alone, not on the broker."""
CLASS_SHARES = "class-shares"
"""A task that needs it has devices tell which classes they have."""
DEVICE_EVALUATION = "device-evaluation"
"""A task that needs it has devices hold out samples, or evaluate and not train."""
RELEASES = "releases"
"""A device that has it takes orders to upgrade itself over the air."""
OURS = Speaks(
    protocol=Span(1, 1),
    manifest=Span(5, 6),
    features=(
        "activation-warmup",
        CALIBRATED_JOULES,
        CLASS_SHARES,
        DEVICE_EVALUATION,
        HTTP_BLOBS,
        "label-shift",
        "regression",
        RELEASES,
        "sample-shapes",
        "training-settings",
    ),
)
"""What this sparsyedge reads, as device and as coordinator. It writes the oldest version that can carry the message."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader of a message must speak. Any kind of message may carry this; few need to."""

    protocol: VersionNumber | UnsetType = UNSET
    """The protocol version of the message. Messages without one, such as a status, are the same in every version."""
    needs: Features = ()
    software: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""
    """The writer of the message, for people to read."""


@dataclass(frozen=True)
class _Side:
    """One side, as a sentence names it."""

    name: str
    software: str

    def __str__(self) -> str:
        return f"{self.name} runs {_shorten(self.software)}"


# Created before any thread starts: see edge/protocol/messages.py.
_DEMAND_DECODER: msgspec.json.Decoder[Demand] = msgspec.json.Decoder(Demand)


@cache
def own_software() -> str:
    """The name and version of this installation, read once from its metadata."""
    return f"sparsyedge {metadata.version('sparsyedge')}"


def read_demand(payload: bytes) -> Demand:
    """What a message demands of its reader; ignores the rest. Raises FrameError if it cannot be read."""
    try:
        return _DEMAND_DECODER.decode(payload)
    # Invalid UTF-8 and very deep nesting raise their own errors.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(str(error)) from error


def require_understood(demand: Demand) -> None:
    """Raise VersionError if a message demands more than this sparsyedge has."""
    if demand.protocol is not UNSET and demand.protocol not in OURS.protocol:
        older = "this side" if demand.protocol > OURS.protocol.newest else "the sender"
        raise VersionError(
            f"upgrade sparsyedge on {older}: the message is in protocol {demand.protocol}, this side runs "
            f"{own_software()} and reads protocol {OURS.protocol}"
        )
    if missing := missing_feature(demand.needs, OURS.features):
        raise VersionError(
            f"upgrade sparsyedge on this side: it runs {own_software()} without {missing}, which the message needs"
        )


def which_upgrade(device: str, software: str, speaks: Speaks, demand: Demand, *, manifest: int | None = None) -> str:
    """Why a device cannot join a run, starting with the next move; empty if it can.

    `software` is the device's, `demand` the coordinator's, `manifest` the version of the run's manifest, if known.
    """
    member, coordinator = _Side(device, software), _Side("the coordinator", demand.software)
    if demand.protocol is not UNSET and demand.protocol not in speaks.protocol:
        older = member if demand.protocol > speaks.protocol.newest else coordinator
        return (
            f"upgrade sparsyedge on {older.name}: {member} and reads protocol {speaks.protocol}, "
            f"{coordinator} and writes protocol {demand.protocol}"
        )
    if manifest is not None and manifest not in speaks.manifest:
        move = f"upgrade sparsyedge on {device}"
        if manifest < speaks.manifest.oldest:
            move = f"run `sparsyedge export` again with {_shorten(software)}"
        return f"{move}: {member} and reads manifest {speaks.manifest}, the run's artifacts have manifest {manifest}"
    if missing := missing_feature(demand.needs, speaks.features):
        return f"upgrade sparsyedge on {device}: {member} without {missing}, {coordinator} and needs it"
    return ""


def missing_feature(needs: Iterable[str], features: Iterable[str]) -> str:
    """The first needed feature that is missing; empty if none is."""
    return next((f"`{need}`" for need in needs if need not in features), "")


def _shorten(software: str) -> str:
    return one_line(software, MAX_SOFTWARE) or "a sparsyedge of unknown version"
