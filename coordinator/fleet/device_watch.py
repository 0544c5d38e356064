"""Tells the rounds, the store and the observer when a device comes, goes or becomes unfit."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import UNSET

from sparsyedge.coordinator.fleet.alarms import Alarms
from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.evaluation_rounds import EvaluationRounds
from sparsyedge.coordinator.fleet.round_driver import RoundDriver
from sparsyedge.coordinator.fleet.waiting_notes import WaitingNotes
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.events import DeviceOffline, DeviceOnline, DeviceUnfit
from sparsyedge.edge.protocol.messages import DeviceStatus, HeldModel, UpgradeStatus

__all__ = ["DeviceWatch"]

log = logging.getLogger(__name__)


class DeviceWatch:
    """Follows the devices' status."""

    def __init__(
        self,
        driver: RoundDriver,
        store: Store,
        notes: WaitingNotes,
        announcements: Announcements,
        evaluations: EvaluationRounds,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._store = store
        self._notes = notes
        self._announcements = announcements
        self._evaluations = evaluations
        self._clock = clock
        self._alarms = Alarms()
        self._samples: dict[str, int] = {}
        self._run = store.run().name
        self._holds: dict[str, HeldModel] = {}
        """What is on record of the models that devices hold."""
        self._upgrades: dict[str, UpgradeStatus] = {}
        """What is on record of devices' upgrades."""

    def note(self, device: str, status: DeviceStatus) -> None:
        """Take in a device's status or its last will."""
        status = self._announcements.judge(device, status)
        self._evaluations.note_device(device, status)
        before = self._driver.state.online.get(device)
        self._driver.feed(_event_of(device, status))
        came_or_went = self._driver.state.online.get(device) != before
        if not came_or_went and status.state == "offline" and before is not None:
            return  # the last will of an earlier boot
        has_news = status.state == "online" and self._samples.get(device) != status.samples
        if has_news:
            self._samples[device] = status.samples
        if came_or_went or has_news or self._notes.reason(device) != status.unfit:
            self._notes.note_fitness(device, status.unfit)
            self._store.note_device(device, status)
            if came_or_went:
                log.info("device %s is %s", device, status.state)
            if came_or_went and status.settings is not UNSET:
                self._store.note_settings(device, status.settings)
            self._notes.mark()
        self._note_alarm(device, status)
        self._note_model(device, status)
        self._note_upgrade(device, status)

    def shut_out(self, device: str) -> None:
        """Mark a revoked device as offline: the broker drops its messages, even its last will."""
        online = self._driver.state.online
        if device in online:
            self.note(device, DeviceStatus(state="offline", boot_id=online[device]))

    def _note_model(self, device: str, status: DeviceStatus) -> None:
        # A device may still hold another run's model.
        if status.holds and status.holds.run == self._run and self._holds.get(device) != status.holds:
            self._holds[device] = status.holds
            self._store.note_model(device, status.holds)

    def _note_upgrade(self, device: str, status: DeviceStatus) -> None:
        if status.upgrade and self._upgrades.get(device) != status.upgrade:
            self._upgrades[device] = status.upgrade
            self._store.note_upgrade(device, status.upgrade)

    def _note_alarm(self, device: str, status: DeviceStatus) -> None:
        alarm = self._alarms.note(device, status, self._clock())
        if alarm is not None:
            self._store.note_alarm(device, alarm)
            log.warning("device %s: %s", device, alarm or "nothing is wrong about it any more")


def _event_of(device: str, status: DeviceStatus) -> DeviceOnline | DeviceUnfit | DeviceOffline:
    if status.state == "offline":
        return DeviceOffline(device, status.boot_id)
    if status.unfit:
        return DeviceUnfit(device, status.boot_id, status.unfit_round)
    return DeviceOnline(device, status.boot_id, bytes(status.classes or ()))
