"""Reports a run's progress to the outside."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from sparsyedge.coordinator.record.records import RoundRecord

__all__ = ["LogObserver", "Observer", "SilentObserver"]

log = logging.getLogger(__name__)

SHOWN = 5
"""The most devices to name in one line."""


class Observer(Protocol):
    """Receives a run's events in order, in the coordinator's thread; must not block for long."""

    def note(self, sentence: str) -> None:
        """Something that the person who started the run should know."""

    def waiting(self, *, round_number: int, online: int, needed: int, unfit: Mapping[str, str]) -> None:
        """A round cannot open yet; repeated when devices come or go. `unfit`: devices that will not train, and why."""

    def device_unfit(self, *, device: str, reason: str) -> None:
        """A device says that it will not train, or could not start."""

    def member_replaced(self, *, round_number: int, device: str, substitute: str) -> None:
        """A member of the cohort will not answer any more, so another device takes its place."""

    def device_quarantined(self, *, device: str, until_round: int, reason: str) -> None:
        """A device that failed in several rounds is in quarantine until a round; 0 ends the quarantine."""

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        """Devices were told to train."""

    def round_resumed(self, *, round_number: int, rounds: int, accepted: int, cohort: tuple[str, ...]) -> None:
        """A round opened by an earlier process continues with `accepted` updates."""

    def round_extended(self, *, round_number: int, cohort: tuple[str, ...], extension: int) -> None:
        """The deadline passed with too few updates, so the round goes on."""

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        """An update is recorded; `accepted` of the `cohort` are in."""

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        """We refused something that a device sent."""

    def awaiting(self, *, round_number: int, awaited: Mapping[str, str], left_s: float) -> None:
        """A round has been open for a while; `awaited` says what each missing member is doing."""

    def round_closed(self, record: RoundRecord) -> None:
        """A round is averaged and recorded; it is evaluated unless that may lag."""

    def round_evaluated(self, record: RoundRecord) -> None:
        """The evaluation of a round that was closed before is done."""

    def run_ended(self, *, state: str, reason: str) -> None:
        """The run is over: `finished`, `stopped` or `failed`."""


class SilentObserver:
    """Ignores all events."""

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

    def round_evaluated(self, record: RoundRecord) -> None:
        pass

    def run_ended(self, *, state: str, reason: str) -> None:
        pass


def _some(names: Sequence[str]) -> str:
    """Join the first few names and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class LogObserver:
    """Writes one line per event into the log."""

    def note(self, sentence: str) -> None:
        log.info("%s", sentence)

    def waiting(self, *, round_number: int, online: int, needed: int, unfit: Mapping[str, str]) -> None:
        besides = f"; unfit: {_some(sorted(unfit))}" if unfit else ""
        log.info("round %d: waiting for devices, %d of %d ready%s", round_number, online, needed, besides)

    def device_unfit(self, *, device: str, reason: str) -> None:
        log.warning("device %s does not train: %s", device, reason)

    def member_replaced(self, *, round_number: int, device: str, substitute: str) -> None:
        log.info("round %d: %s takes the place of %s", round_number, substitute, device)

    def device_quarantined(self, *, device: str, until_round: int, reason: str) -> None:
        if until_round:
            sooner = "`sparsyedge coordinator release` lets it in earlier"
            log.warning("device %s is left out until round %d: %s; %s", device, until_round, reason, sooner)
        else:
            log.info("device %s is out of quarantine", device)

    def awaiting(self, *, round_number: int, awaited: Mapping[str, str], left_s: float) -> None:
        names = _some([f"{device} ({doing})" for device, doing in sorted(awaited.items())])
        log.info("round %d: waiting for %s, for %.0f min at most", round_number, names, max(0.0, left_s) / 60)

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        log.info(
            "round %d of %d: open for %d devices, learning rate %.4f", round_number, rounds, len(cohort), learning_rate
        )

    def round_resumed(self, *, round_number: int, rounds: int, accepted: int, cohort: tuple[str, ...]) -> None:
        log.info("round %d of %d: goes on, %d of %d updates are in", round_number, rounds, accepted, len(cohort))

    def round_extended(self, *, round_number: int, cohort: tuple[str, ...], extension: int) -> None:
        log.warning(
            "round %d: too few updates at the deadline, extended (%d) for %d devices",
            round_number,
            extension,
            len(cohort),
        )

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        log.info(
            "round %d: update of %s accepted, %d bytes (%d of %d)", round_number, device, update_bytes, accepted, cohort
        )

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        log.warning("round %d: refused from %s: %s", round_number, device, reason)

    def round_closed(self, record: RoundRecord) -> None:
        log.info(
            "round %d: closed with %d updates, %s, sparsity %.2f%%, %d bytes up, %.1f s",
            record.round,
            record.updates,
            record.quality,
            100 * record.global_sparsity,
            record.bytes_up,
            record.seconds,
        )

    def round_evaluated(self, record: RoundRecord) -> None:
        log.info("round %d: %s", record.round, record.quality)

    def run_ended(self, *, state: str, reason: str) -> None:
        # On failure the command itself prints the reason.
        if state != "failed":
            log.info("the run is %s", state)
