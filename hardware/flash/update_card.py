"""Changes the settings of a card that was made before, and leaves the device's identity, its data and its work alone.

A board acts on new settings by the means of its first boot: cloud-init, since the card is a new instance, or
firstrun.sh. An image is changed in a copy that takes its place. On a disk, all files are in place before the one
that makes the board act on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile, parse_device_file
from sparsyedge.edge.toml_text import merged_tables
from sparsyedge.hardware.flash.card import device_file_bytes, workplace, write_all
from sparsyedge.hardware.flash.card_record import CardRecord, read_record, setting_files
from sparsyedge.hardware.flash.card_settings import CardSettings
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.first_boot import FLASHED_AT_NAME, card_files
from sparsyedge.hardware.flash.stock_image import boot_volume, unpack

__all__ = ["CardChange", "Updated", "read_card", "update_card"]

MAX_DIGITS = 13


@dataclass(frozen=True, kw_only=True)
class CardChange:
    """What is to change on one card."""

    settings: Callable[[CardRecord], CardSettings]
    """The settings from now on, given those of the card."""
    invite: Callable[[str], DeviceFile] | None = None
    """Supplies a new identity with a token, if the device is to enrol again."""
    host: str | None = None
    """Where the broker is from now on."""


@dataclass(frozen=True)
class Updated:
    """What became of a card."""

    record: CardRecord
    device: DeviceFile | None
    """The file of a device that enrols at the next boot; None if it is a member and stays one."""


def read_card(path: Path) -> CardRecord:
    """The record of the card in an image or on a disk; raises FlashError if it is not one of ours."""
    with boot_volume(path) as volume:
        return read_record(volume, path)


def update_card(path: Path, change: CardChange) -> Updated:
    """Change a card's image or the card on a disk; raises FlashError, and then nothing has changed."""
    if path.is_block_device():
        with boot_volume(path, writable=True) as volume:
            return _update(volume, path, change)
    # Before gigabytes are copied.
    read_card(path)
    with workplace(path) as folder:
        copy = folder / "card.img"
        unpack(path, copy)
        with boot_volume(copy, writable=True, name=path.name) as volume:
            updated = _update(volume, path, change)
        copy.chmod(0o600)
        copy.rename(path)
    return updated


def _update(volume: FatVolume, path: Path, change: CardChange) -> Updated:
    before = read_record(volume, path)
    waiting = _waiting_device(volume, path)
    settings = change.settings(before)
    if change.host is not None and waiting is None:
        # The device is a member: its own config says where the broker is.
        broker = merged_tables(settings.device.get("broker", {}), {"host": change.host})
        settings = msgspec.structs.replace(settings, device={**settings.device, "broker": broker})
    record = msgspec.structs.replace(before, settings=settings)
    flashed_at = _later_than(volume.read(FLASHED_AT_NAME) or b"")
    files, trigger = setting_files(record, volume.read("cmdline.txt") or b"", flashed_at=flashed_at)
    files = {**card_files(flashed_at), **files}
    device = _device_from_now_on(record, waiting, change)
    if device is not None:
        files[DEVICE_FILE_NAME] = device_file_bytes(device)
    last = files.pop(trigger)
    write_all(volume, files)
    volume.flush()
    write_all(volume, {trigger: last})
    return Updated(record, device)


def _later_than(flashed_at: bytes) -> int:
    """Now, but after the card was last written, whatever this machine's clock says: boards act on what is new."""
    before = int(flashed_at) if flashed_at.strip().isdigit() and len(flashed_at) < MAX_DIGITS else 0
    return max(int(time.time()), before + 1)


def _waiting_device(volume: FatVolume, path: Path) -> DeviceFile | None:
    """The file of a device that has not enrolled yet."""
    content = volume.read(DEVICE_FILE_NAME)
    return None if content is None else parse_device_file(content, f"{DEVICE_FILE_NAME} on {path}")


def _device_from_now_on(record: CardRecord, waiting: DeviceFile | None, change: CardChange) -> DeviceFile | None:
    host = {} if change.host is None else {"host": change.host, "find": False}
    if change.invite is None:
        return waiting and msgspec.structs.replace(waiting, **host)
    made = change.invite(record.device)
    if made.fleet != record.fleet:
        raise FlashError(
            f"the card is of fleet {record.fleet} and the authority of fleet {made.fleet}; name the other --fleet-dir"
        )
    # A member's data stays as its device.toml has it; a device that has none yet gets what the card was made for.
    return msgspec.structs.replace(made, data=waiting.data if waiting is not None else None, **host)
