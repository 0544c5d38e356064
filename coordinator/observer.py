"""How a run tells the outside about its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sparsyedge.coordinator.records import RoundRecord

__all__ = ["Observer", "SilentObserver"]


class Observer(Protocol):
    """Is told what happens, in the coordinator's thread and in order; must not block for long."""

    def note(self, sentence: str) -> None:
        """Something about the run that whoever started it should know."""

    def waiting(self, *, round_number: int, online: int, needed: int, unfit: Mapping[str, str]) -> None:
        """A round cannot open yet; told again whenever a device comes or goes. `unfit`: who will not train, and why."""

    def device_unfit(self, *, device: str, reason: str) -> None:
        """A device says that it will not train, or could not start."""

    def member_replaced(self, *, round_number: int, device: str, substitute: str) -> None:
        """A member of the cohort will not answer any more, and another device has its place."""

    def device_quarantined(self, *, device: str, until_round: int, reason: str) -> None:
        """A device that failed in several rounds is left out until a round; 0 where it is let in again."""

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        """Devices were told to train."""

    def round_resumed(self, *, round_number: int, rounds: int, accepted: int, cohort: tuple[str, ...]) -> None:
        """A round that an earlier process opened goes on; `accepted` of its updates are in."""

    def round_extended(self, *, round_number: int, cohort: tuple[str, ...], extension: int) -> None:
        """A deadline passed with too few updates, and the round goes on."""

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        """An update is recorded; `accepted` of the `cohort` are in."""

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        """Something that a device sent was not taken."""

    def awaiting(self, *, round_number: int, awaited: Mapping[str, str], left_s: float) -> None:
        """A round has been open for a while; `awaited` says what the members that are missing do."""

    def round_closed(self, record: RoundRecord) -> None:
        """A round is averaged, evaluated and recorded."""

    def run_ended(self, *, state: str, reason: str) -> None:
        """The run is over: `finished`, `stopped` or `failed`."""


class SilentObserver:
    """Tells nobody."""

    def note(self, sentence: str) -> None:
        pass

    def waiting(self, *, round_number: int, online: int, needed: int, unfit: Mapping[str, str]) -> None:
        pass

    def device_unfit(self, *, device: str, reason: str) -> None:
        pass

    def member_replaced(self, *, round_number: int, device: str, substitute: str) -> None:
        pass

    def device_quarantined(self, *, device: str, until_round: int, reason: str) -> None:
        pass

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        pass

    def round_resumed(self, *, round_number: int, rounds: int, accepted: int, cohort: tuple[str, ...]) -> None:
        pass

    def round_extended(self, *, round_number: int, cohort: tuple[str, ...], extension: int) -> None:
        pass

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        pass

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        pass

    def awaiting(self, *, round_number: int, awaited: Mapping[str, str], left_s: float) -> None:
        pass

    def round_closed(self, record: RoundRecord) -> None:
        pass

    def run_ended(self, *, state: str, reason: str) -> None:
        pass
