"""The topic tree of a fleet. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Topics"]

TOPIC_TREE = "v1"
"""The root of all topics, for every protocol version. It changes only if the announcements themselves must."""


@dataclass(frozen=True)
class Topics:
    """The topic tree of one fleet. No topic has more than seven slashes: cloud brokers allow no more."""

    fleet: str

    @property
    def root(self) -> str:
        return f"se/{TOPIC_TREE}/{self.fleet}"

    @property
    def round(self) -> str:
        """Coordinator to all, retained: the RoundTask."""
        return f"{self.root}/round"

    @property
    def lease(self) -> str:
        """Between coordinators, retained, with a last will: the Lease."""
        return f"{self.root}/lease"

    @property
    def catalogue(self) -> str:
        """Between coordinators, retained: the Catalogue."""
        return f"{self.root}/blobs"

    @property
    def release(self) -> str:
        """Coordinator to all, retained: the sealed Release that devices may be told to install."""
        return f"{self.root}/release"

    @property
    def authority(self) -> str:
        """Coordinator to all, retained: the SealedSuccession that names whom devices trust."""
        return f"{self.root}/authority"

    def order(self, device: str) -> str:
        """Coordinator to one device, retained: a sealed Order about the release."""
        return f"{self.root}/dev/{device}/order"

    def chunk(self, blob: str, index: int | Literal["+"]) -> str:
        """Coordinator to all, retained: one chunk of a model or of an artifact file."""
        return f"{self.root}/blob/{blob}/{index}"

    def status(self, device: str) -> str:
        """Device to coordinator, retained, with a last will: the DeviceStatus."""
        return f"{self.root}/dev/{device}/status"

    def progress(self, device: str) -> str:
        """Device to coordinator, retained while a job lasts: its Progress."""
        return f"{self.root}/dev/{device}/progress"

    def offer(self, device: str) -> str:
        """Device to coordinator: an Offer."""
        return f"{self.root}/dev/{device}/offer"

    def report(self, device: str) -> str:
        """Device to coordinator: a Report."""
        return f"{self.root}/dev/{device}/report"

    def reply(self, device: str) -> str:
        """Coordinator to one device: a Grant, Accepted, Refused or Wait."""
        return f"{self.root}/dev/{device}/reply"

    def upload(self, device: str, blob: str, index: int | Literal["+"]) -> str:
        """Device to coordinator: one chunk of an update."""
        return f"{self.root}/dev/{device}/up/{blob}/{index}"

    def renewal_request(self, device: str) -> str:
        """Device to coordinator: a RenewalRequest."""
        return f"{self.root}/dev/{device}/renew"

    def renewal_reply(self, device: str) -> str:
        """Coordinator to one device: a RenewalReply."""
        return f"{self.root}/dev/{device}/identity"

    def enrol_request(self, device: str) -> str:
        """Newcomer to coordinator: an EnrolRequest."""
        return f"{self.root}/enrol/req/{device}"

    def enrol_reply(self, connection: str) -> str:
        """Coordinator to one newcomer, addressed by its connection's client id: an EnrolReply."""
        return f"{self.root}/enrol/reply/{connection}"

    def parse(self, topic: str) -> tuple[str, ...]:
        """The levels of a topic below the fleet's root, e.g. ("dev", "pi-07", "offer"); empty for a foreign topic."""
        prefix = f"{self.root}/"
        return tuple(topic[len(prefix) :].split("/")) if topic.startswith(prefix) else ()
