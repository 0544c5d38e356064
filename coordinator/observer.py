"""How a run tells the outside about its progress."""

from __future__ import annotations

import logging
from typing import Protocol

from sparsyedge.coordinator.records import RoundRecord

__all__ = ["LogObserver", "Observer", "SilentObserver"]

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Is told what happens, in the coordinator's thread and in order; must not block for long."""

    def waiting(self, *, round_number: int, online: int, needed: int) -> None:
        """A round cannot open yet; told again whenever a device comes or goes."""

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

    def round_closed(self, record: RoundRecord) -> None:
        """A round is averaged, evaluated and recorded."""

    def run_ended(self, *, state: str, reason: str) -> None:
        """The run is over: `finished`, `stopped` or `failed`."""


class SilentObserver:
    """Tells nobody."""

    def waiting(self, *, round_number: int, online: int, needed: int) -> None:
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

    def run_ended(self, *, state: str, reason: str) -> None:
        pass


class LogObserver:
    """Writes one line per event into the log."""

    def waiting(self, *, round_number: int, online: int, needed: int) -> None:
        log.info("round %d: waiting for devices, %d of %d online", round_number, online, needed)

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
        accuracy = "-" if record.test_accuracy is None else f"{record.test_accuracy:.2%}"
        log.info(
            "round %d: closed with %d updates, accuracy %s, sparsity %.2f%%, %d bytes up, %.1f s",
            record.round,
            record.updates,
            accuracy,
            100 * record.global_sparsity,
            record.bytes_up,
            record.seconds,
        )

    def run_ended(self, *, state: str, reason: str) -> None:
        # A failure ends the command, which then says why.
        if state != "failed":
            log.info("the run is %s", state)
