"""The rollout of a release, pure: `advance(rollout, event, now) -> (rollout, orders)`. No I/O.

    canaries ──all kept──> wave of 2n ──all kept──> wave of 4n ... ──> done
        └──── a failure in any of them ──> halted        rollback from anywhere ──> returning ──> returned

What a device reports is its retained status, so it may come late, twice, or again after a restart of ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from sparsyedge.edge.protocol.messages import DeviceStatus
from sparsyedge.edge.protocol.releases import Action
from sparsyedge.edge.text import one_line

__all__ = ["Event", "Giving", "Halt", "Progress", "Return", "Rollout", "Seen", "State", "Tick", "advance", "unreached"]

State = Literal["running", "halted", "done", "returning", "returned"]

FAILED = ("refused", "returned", "lost")
"""Stages of a device that has given up a release, or that we have given up."""
STAYS = ("refused", "lost")
"""Stages of a device that will not go back, or of which we hear no more."""
UNABLE = ("fixed", "old")
"""Stages of devices that no order can upgrade."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One device in a rollout."""

    online: bool = False
    software: str = ""
    stage: str = ""
    """As the device says it; `old`: it knows nothing of releases; `lost`: it did not answer in time."""
    reason: str = ""
    alarm: str = ""
    running: str = ""
    """The bundle it runs."""
    wave: int | None = None
    """Counted from 0, the canaries."""
    installing: int = 0
    """The serial of its order to install."""
    serial: int = 0
    """The serial of its last order."""
    action: Action | None = None
    ordered_at: float = 0.0
    awaited: bool = False
    """Whether it was online in a rollback, and so has heard of it."""

    @property
    def is_kept(self) -> bool:
        return self.stage == "kept"

    @property
    def is_failed(self) -> bool:
        return self.wave is not None and self.stage in FAILED

    @property
    def is_at_work(self) -> bool:
        return self.wave is not None and not self.is_kept and not self.is_failed


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it is on disk."""

    fleet: str
    bundle: str
    software: str
    state: State = "running"
    reason: str = ""
    """Why it halted."""
    canaries: int = 1
    named: tuple[str, ...] = ()
    """Canaries by name; empty if they are drawn."""
    limit_s: float = 3600.0
    """How long a device of a wave may take."""
    wave: int = -1
    """The present one; -1 before the canaries."""
    last_serial: int = 0
    devices: dict[str, Progress] = {}


class Seen(msgspec.Struct, frozen=True):
    """A device's status."""

    device: str
    status: DeviceStatus


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Halt(msgspec.Struct, frozen=True):
    """The operator wants no more devices upgraded."""


class Return(msgspec.Struct, frozen=True):
    """The operator wants the devices to have what they had before."""


Event = Seen | Tick | Halt | Return


class Giving(msgspec.Struct, frozen=True):
    """An order to be given."""

    device: str
    action: Action


def advance(rollout: Rollout, event: Event, now_s: float) -> tuple[Rollout, list[Giving]]:
    """Take in an event; returns the rollout after it and the orders to give. `now_s` is in Unix seconds."""
    match event:
        case Seen(device, status):
            return _see(rollout, device, status, now_s)
        case Tick():
            return _tick(rollout, now_s)
        case Halt():
            return _halt(rollout, "halted by the operator", now_s)
        case Return():
            for name, each in rollout.devices.items():
                rollout = _put(rollout, name, replace(each, awaited=each.online))
            running = [name for name, each in rollout.devices.items() if each.running == rollout.bundle]
            at_work = [name for name, each in rollout.devices.items() if each.is_at_work and name not in running]
            rollout, halts = _give(rollout, at_work, "halt", now_s)
            rollout, returns = _give(replace(rollout, state="returning", reason=""), running, "return", now_s)
            return rollout, halts + returns


def unreached(rollout: Rollout) -> list[str]:
    """The devices that a finished rollout has left behind because they were away."""
    wanted = rollout.state in ("returning", "returned")
    return sorted(
        name
        for name, each in rollout.devices.items()
        if not each.online
        and each.stage not in UNABLE
        and ((each.running == rollout.bundle) if wanted else not each.is_kept and not each.is_failed)
    )


def _see(rollout: Rollout, device: str, status: DeviceStatus, now_s: float) -> tuple[Rollout, list[Giving]]:
    before = rollout.devices.get(device, Progress())
    if status.state == "offline":
        return _put(rollout, device, replace(before, online=False)), []
    after = _read(rollout, before, status)
    rollout = _put(rollout, device, after)
    if rollout.state == "returning":
        rollout = _put(rollout, device, after := replace(after, awaited=True))
    if after.stage == "trial" and after.running == rollout.bundle and after.action != "return":
        if rollout.state == "running" and after.action != "keep":
            return _give(rollout, [device], "keep", now_s)
        if rollout.state == "halted":
            return _give(rollout, [device], "return", now_s)
    if rollout.state == "returning" and after.running == rollout.bundle and after.action != "return":
        return _give(rollout, [device], "return", now_s)
    return rollout, []


def _read(rollout: Rollout, before: Progress, status: DeviceStatus) -> Progress:
    """What the status says about this rollout; what it says about earlier orders does not count."""
    now = replace(before, online=True, software=status.software)
    said = status.upgrade
    if not said:
        return replace(now, stage="old", reason="its version cannot be upgraded over the air; set it up again")
    now = replace(now, running=said.running, alarm=said.alarm)
    if said.stage in UNABLE:
        return replace(now, stage=said.stage, reason=said.reason)
    if said.running == rollout.bundle and said.stage == "kept":
        return replace(now, stage="kept", reason="", wave=before.wave)
    first = before.installing or before.serial
    if first and said.order >= first and (before.action == "return" or not before.is_failed):
        return replace(now, stage=said.stage, reason=said.reason)
    if before.stage in UNABLE:
        # It was set up again since.
        return replace(now, stage="", reason="")
    return now


def _tick(rollout: Rollout, now_s: float) -> tuple[Rollout, list[Giving]]:
    if rollout.state == "returning":
        rollout = _lose_the_silent(rollout, now_s)
        left = any(_is_returning(rollout, each) for each in rollout.devices.values())
        return (rollout if left else replace(rollout, state="returned")), []
    if rollout.state != "running":
        return rollout, []
    rollout = _lose_the_silent(rollout, now_s)
    failed = sorted(name for name, each in rollout.devices.items() if each.is_failed)
    if failed:
        first = rollout.devices[failed[0]]
        return _halt(rollout, one_line(f"{', '.join(failed)} failed: {first.reason}"), now_s)
    if any(each.is_at_work for each in rollout.devices.values()):
        return rollout, []
    return _next_wave(rollout, now_s)


def _lose_the_silent(rollout: Rollout, now_s: float) -> Rollout:
    for name, each in rollout.devices.items():
        waits = each.is_at_work or (rollout.state == "returning" and _is_returning(rollout, each))
        if waits and now_s - each.ordered_at > rollout.limit_s:
            how = f"is {each.stage}" if each.online else f"went offline ({each.stage or 'nothing heard'})"
            lost = replace(each, stage="lost", reason=f"it did not finish within {rollout.limit_s:g} s: it {how}")
            rollout = _put(rollout, name, lost)
    return rollout


def _is_returning(rollout: Rollout, each: Progress) -> bool:
    """Whether a device will yet say that it has gone back; it is offline in between, since it restarts."""
    return each.awaited and each.running == rollout.bundle and each.stage not in STAYS


def _next_wave(rollout: Rollout, now_s: float) -> tuple[Rollout, list[Giving]]:
    candidates = [
        name
        for name, each in rollout.devices.items()
        if each.online and each.wave is None and not each.is_kept and each.stage not in UNABLE
    ]
    if not candidates:
        return replace(rollout, state="done"), []
    number = rollout.wave + 1
    if number == 0 and rollout.named:
        chosen = [name for name in rollout.named if name in candidates]
    else:
        ordered = sorted(candidates, key=lambda name: hashlib.sha256(f"{rollout.bundle}{name}".encode()).digest())
        chosen = ordered[: max(1, len(rollout.named) or rollout.canaries) * 2**number]
    rollout = replace(rollout, wave=number)
    for name in chosen:
        rollout = _put(rollout, name, replace(rollout.devices[name], wave=number, stage="ordered", reason=""))
    return _give(rollout, chosen, "install", now_s)


def _halt(rollout: Rollout, reason: str, now_s: float) -> tuple[Rollout, list[Giving]]:
    on_trial = [name for name, each in rollout.devices.items() if each.is_at_work and each.stage == "trial"]
    others = [name for name, each in rollout.devices.items() if each.is_at_work and each.stage != "trial"]
    rollout, returns = _give(replace(rollout, state="halted", reason=reason), on_trial, "return", now_s)
    rollout, halts = _give(rollout, others, "halt", now_s)
    return rollout, returns + halts


def _give(rollout: Rollout, devices: Iterable[str], action: Action, now_s: float) -> tuple[Rollout, list[Giving]]:
    """Number new orders; the caller writes the rollout to disk before it sends them."""
    given = []
    for name in devices:
        serial = max(rollout.last_serial + 1, int(now_s))
        each = rollout.devices[name]
        each = replace(each, serial=serial, action=action)
        if action in ("install", "return"):
            each = replace(each, ordered_at=now_s)
        if action == "install":
            each = replace(each, installing=serial)
        rollout = _put(replace(rollout, last_serial=serial), name, each)
        given.append(Giving(name, action))
    return rollout, given


def _put(rollout: Rollout, device: str, progress: Progress) -> Rollout:
    if rollout.devices.get(device) == progress:
        return rollout
    return replace(rollout, devices={**rollout.devices, device: progress})
