"""Reports a run's progress to the outside."""

from __future__ import annotations

import logging
from typing import Protocol

from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.situation import Situation

__all__ = ["LogObserver", "Observer", "SilentObserver"]

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Receives a run's events in order, in the coordinator's thread; must not block for long."""

    def note(self, sentence: str) -> None:
        """Something that the person who started the run should know."""

    def waiting(self, situation: Situation) -> None:
        """What the run waits for: when that changes, and once a minute."""

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

    def waiting(self, situation: Situation) -> None:
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

    def round_closed(self, record: RoundRecord) -> None:
        pass

    def round_evaluated(self, record: RoundRecord) -> None:
        pass

    def run_ended(self, *, state: str, reason: str) -> None:
        pass


class LogObserver:
    """Writes one line per event into the log."""

    def note(self, sentence: str) -> None:
        log.info("%s", sentence)

    def waiting(self, situation: Situation) -> None:
        log.info("%s", situation.sentence)

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
