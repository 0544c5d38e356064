"""Follows the operator's orders about releases, between rounds: fetch, install, check, switch, and be acknowledged.

Every step may be cut by a round, a restart or a loss of power. What is done is on disk (`Slots.record`), and a device
that starts again does the rest.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.device.courier import Courier
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.protocol.messages import UpgradeStatus
from sparsyedge.edge.protocol.releases import Order, Release
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.release_seal import open_order, open_release
from sparsyedge.edge.text import one_line
from sparsyedge.edge.upgrade import judge
from sparsyedge.edge.upgrade.download import Download, fetched_bytes
from sparsyedge.edge.upgrade.install import Program, install
from sparsyedge.edge.upgrade.slots import Record, Slots

__all__ = ["Settings", "Upgrader"]

log = logging.getLogger(__name__)

CHECK_LIMIT_S = 300.0
TRIAL_LIMIT_S = 600.0
LIMIT_VARIABLES = ("SPARSYEDGE_CHECK_LIMIT_S", "SPARSYEDGE_TRIAL_LIMIT_S")
"""Tests and slow boards set other limits."""


@dataclass(frozen=True)
class Settings:
    """Whose releases a device takes, and what its self-check needs."""

    fleet: str
    keys: PinnedKeys
    config: Path
    work_dir: Path
    ca: Path | None = None
    """Vouches for a web store beside the system's authorities."""
    check_limit_s: float = CHECK_LIMIT_S
    trial_limit_s: float = TRIAL_LIMIT_S

    @classmethod
    def of(cls, fleet: str, keys: PinnedKeys, *, config: Path, work_dir: Path, ca: Path | None = None) -> Settings:
        """The settings of a device, with the limits of its environment."""
        check_s, trial_s = (
            float(os.environ.get(name, default))
            for name, default in zip(LIMIT_VARIABLES, (CHECK_LIMIT_S, TRIAL_LIMIT_S), strict=True)
        )
        return cls(fleet, keys, config.absolute(), work_dir.absolute(), ca, check_s, trial_s)


class Upgrader:
    """A device's chores: it takes orders about releases and follows them between rounds."""

    def __init__(
        self,
        courier: Courier,
        slots: Slots,
        settings: Settings,
        *,
        machine: judge.Machine | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.wants_restart = False
        self._courier = courier
        self._slots = slots
        self._settings = settings
        self._machine = machine or judge.Machine.here()
        self._clock = clock
        self._topics = Topics(settings.fleet)
        self._download = Download(courier, self._topics, slots.wheels, ca=settings.ca)
        self._program = Program()
        self._record = slots.record()
        self._release: tuple[Release, int] | None = None
        self._bad_release = ""
        """Why the last release was not taken."""
        self._refused = 0
        self._alarm = ""
        self._job: Iterator[None] | None = None

    def join(self) -> None:
        """Subscribe to releases and orders, and say how the last upgrade went."""
        self._settle_last_start()
        self._courier.watch(self._topics.release, self._take_release)
        self._courier.watch(self._topics.order(self._courier.device), self._take_order)
        self._tell()

    def work(self) -> None:
        """Take the next step of the present order, if there is one."""
        if self._job is None:
            self._job = self._next_job()
        if self._job is None:
            return
        try:
            next(self._job)
        except StopIteration:
            self._job = None
        except (SecurityError, OSError) as error:
            self._job = None
            self._note("refused", one_line(str(error)))
            log.error("release refused: %s; this device stays as it is", error)

    def hold(self) -> None:
        """Stop whatever is being fetched or installed while a round is under way."""
        self._download.hold()
        self._program.hold()

    def note_accepted(self) -> None:
        """An accepted update proves this version, whoever leads the rollout."""
        self._keep_slot()

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _take_release(self, payload: bytes) -> None:
        if not payload:
            self._release = None
            return
        try:
            fleet = self._settings.fleet
            release, chunk_bytes = self._settings.keys.check(
                lambda key: open_release(payload, fleet=fleet, signing_key=key)
            )
            judge.check_fresh(release, now_unix_s=self._now(), seen=self._record.release_version)
        except SecurityError as error:
            self._bad_release = str(error)
            self._refuse_message(str(error))
            return
        self._bad_release = ""
        self._release = release, chunk_bytes
        if release.version > self._record.release_version:
            latest = max(self._record.latest_unix_s, release.issued_unix_s)
            self._remember(release_version=release.version, latest_unix_s=latest)

    def _take_order(self, payload: bytes) -> None:
        if not payload:
            return
        try:
            fleet = self._settings.fleet
            order = self._settings.keys.check(lambda key: open_order(payload, fleet=fleet, signing_key=key))
            if order.device != self._courier.device:
                raise SecurityError(f"the order is for {order.device}, this device is {self._courier.device}")
            if order.serial < self._record.order:
                raise SecurityError(f"order {order.serial} is an earlier one sent again; {self._record.order} was seen")
        except SecurityError as error:
            self._refuse_message(str(error))
            return
        if order.serial > self._record.order:
            self._follow(order)

    def _follow(self, order: Order) -> None:
        """Take up a new order; whatever the last one began ends."""
        latest = max(self._record.latest_unix_s, order.issued_unix_s)
        self._end_job()
        running = self._running()
        self._remember(order=order.serial, bundle=order.bundle, latest_unix_s=latest)
        log.info("order %d: %s release %s", order.serial, order.action, order.bundle[:12])
        match order.action:
            case "install" if running != order.bundle:
                self._note("ordered")
            case "install" | "keep" if running == order.bundle:
                self._keep_slot()
                self._note("kept")
            case "return" if running == order.bundle:
                self._return()
            case "return" | "halt":
                self._note("halted")
            case _:
                self._note("waiting")

    def _return(self) -> None:
        """Go back to the slot from before."""
        back = self._record.previous.get(self._slots.own)
        if back is None or not self._slots.can_return_to(back):
            self._note("refused", "there is nothing to return to: what it ran before was overwritten since")
            return
        self._note("returned", "as ordered")
        self._slots.switch_back(back)
        self.wants_restart = True

    # ---- the upgrade -------------------------------------------------------------------------------------------------

    def _next_job(self) -> Iterator[None] | None:
        if self._record.stage not in ("ordered", "downloading", "installing", "checking", "switching"):
            return None
        if self._running() == self._record.bundle:
            return None
        if self._release is not None and self._release[0].bundle == self._record.bundle:
            return self._upgrade(*self._release)
        if self._bad_release:
            self._note("refused", self._bad_release)
        return None

    def _upgrade(self, release: Release, chunk_bytes: int) -> Iterator[None]:
        settings, slots = self._settings, self._slots
        judge.check_fresh(release, now_unix_s=self._now(), seen=self._record.release_version)
        wheels = judge.fitting_set(release, self._machine)
        judge.check_newer(release, own_software().removeprefix("sparsyedge "))
        self._download.keep_only(wheels)
        room = _free_bytes(slots.folder) + _used_bytes(slots.free)
        judge.check_room(wheels, fetched=fetched_bytes(slots.wheels, wheels), free_bytes=room)
        self._note("downloading")
        yield from self._download.fetch(wheels, chunk_bytes, release.blobs or "")
        crash_point("downloaded")
        self._note("installing")
        # That slot is about to be written to: nobody can return to what it held.
        free = slots.free.name
        self._remember(
            previous={new: old for new, old in self._record.previous.items() if free not in (new, old)},
            bundles={name: bundle for name, bundle in self._record.bundles.items() if name != free},
        )
        slot = slots.clear_free()
        yield from install(self._program, wheels, slots.wheels, slot)
        crash_point("installed")
        self._note("checking")
        task = self._courier.task
        manifest = task.manifest.sha256 if task is not None and task.state != "finished" else ""
        python, what = slot / "bin" / "python", f"the self-check of release {release.software}"
        paths = ("--config", settings.config, "--work-dir", settings.work_dir)
        for check in (
            # As the launcher will start it.
            ("sparsyedge.edge", "--help"),
            ("sparsyedge.edge.upgrade.self_check", *paths, "--manifest", manifest),
        ):
            yield from self._program.run(what, [python, "-P", "-m", *check], limit_s=settings.check_limit_s)
        crash_point("checked")
        self._remember(
            bundles={**self._record.bundles, free: release.bundle}, previous={**self._record.previous, free: slots.own}
        )
        self._note("switching")
        slots.begin_trial(release.bundle, limit_s=settings.trial_limit_s)
        log.info("switching to release %s, on trial", release.software)
        self.wants_restart = True

    # ---- trials ------------------------------------------------------------------------------------------------------

    def _settle_last_start(self) -> None:
        """Say what became of the last upgrade: on trial now, or given up by the launcher."""
        returned = self._slots.take_returned()
        if self._slots.trial is not None:
            self._note("trial")
            log.info("release %s is on trial until the coordinator acknowledges it", self._running()[:12])
        elif returned is not None and returned.bundle == self._record.bundle:
            self._note("returned", one_line(f"the new version {returned.reason}"))
            log.error("went back from release %s: it %s", returned.bundle[:12], returned.reason)
        elif self._record.stage == "trial":
            # Acknowledged, and killed before it could note that.
            self._note("kept")

    def _keep_slot(self) -> None:
        if self._slots.trial is None:
            return
        self._slots.end_trial()
        self._note("kept")
        log.info("release %s is acknowledged and stays", self._running()[:12])

    def _running(self) -> str:
        return self._record.bundles.get(self._slots.own, "")

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """The time, and never before what the operator has signed: many boards have no clock of their own."""
        return max(self._clock(), self._record.latest_unix_s)

    def _end_job(self) -> None:
        job, self._job = self._job, None
        if job is not None and hasattr(job, "close"):
            job.close()

    def _refuse_message(self, reason: str) -> None:
        self._refused += 1
        if self._alarm != reason:
            log.warning("refused a message about releases: %s", reason)
        self._alarm = one_line(reason)
        self._tell()

    def _note(self, stage: str, reason: str = "") -> None:
        self._remember(stage=stage, reason=reason)
        self._tell()

    def _remember(self, **changes: object) -> None:
        changed: Record = msgspec.structs.replace(self._record, **changes)
        if changed != self._record:
            self._slots.keep(changed)
            self._record = changed

    def _tell(self) -> None:
        record = self._record
        self._courier.say_upgrade(
            UpgradeStatus(
                stage=record.stage,
                order=record.order,
                bundle=record.bundle,
                running=self._running(),
                reason=record.reason,
                alarm=self._alarm,
            )
        )


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _used_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) if folder.is_dir() else 0
