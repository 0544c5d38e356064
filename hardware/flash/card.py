"""Turns a stock image into one card image per device, each with its own identity; a failure leaves no partial image."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile
from sparsyedge.hardware.flash.card_record import CardRecord, setting_files
from sparsyedge.hardware.flash.card_settings import CardSettings
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.first_boot import CARD_FOLDER, card_files
from sparsyedge.hardware.flash.setting_checks import hostname_of
from sparsyedge.hardware.flash.stock_image import OsImage, boot_volume, identify, unpack
from sparsyedge.hardware.flash.wheel_hashes import Signer, device_wheels

__all__ = ["CardPlan", "device_file_bytes", "device_names", "make_cards", "stock_settings", "workplace", "write_all"]

SPARE_BYTES = 1 << 20
"""Space left free on the boot partition for the system's own files."""


def stock_settings(device: str) -> CardSettings:
    """A board as the stock image has it, but for its name."""
    return CardSettings(hostname=hostname_of(device))


@dataclass(frozen=True, kw_only=True)
class CardPlan:
    """What goes on every card of a series; `invite` supplies each identity, `settings` what each board is set to."""

    image: Path
    invite: Callable[[str], DeviceFile]
    wheelhouse: Path
    sign: Signer
    settings: Callable[[str], CardSettings] = stock_settings
    data: Sequence[Path] = ()


def device_names(first: str, count: int) -> list[str]:
    """The ids of a series: pi-07, pi-08, ...; a name without a number gets one if there are several devices."""
    try:
        msgspec.convert(first, Identifier)
    except msgspec.ValidationError as error:
        raise FlashError(
            f"device id is {first!r}, allowed are 1 to 63 letters, digits, `_`, `.` and `-`, a letter or digit first"
        ) from error
    if count < 1:
        raise FlashError(f"count is {count}, allowed is 1 or more")
    stem, digits = re.fullmatch(r"(.*?)(\d*)", first).groups()  # type: ignore[union-attr]
    if count == 1:
        return [first]
    start, width = (int(digits), len(digits)) if digits else (1, 2)
    names = [f"{stem if digits else f'{first}-'}{start + offset:0{width}d}" for offset in range(count)]
    if len(names[-1]) > 63:
        raise FlashError(f"device id {names[-1]!r} has {len(names[-1])} characters, allowed are 63")
    return names


def card_path(out: Path, device: str, count: int) -> Path:
    """The path of a card's image; in a series, the file name includes the device id."""
    return out if count == 1 else out.with_name(f"{out.stem}-{device}{out.suffix or '.img'}")


def make_cards(plan: CardPlan, devices: Sequence[str], out: Path) -> Iterator[tuple[str, Path]]:
    """Make one image per device and yield each when done; raises FlashError before writing if something is missing."""
    paths = [card_path(out, device, len(devices)) for device in devices]
    for path in paths:
        if path.exists():
            raise FlashError(f"{path} exists; remove it, or choose another name with --out")
    flashed_at = int(time.time())
    settings = {device: plan.settings(device) for device in devices}
    with workplace(out) as folder:
        base = folder / "base.img"
        unpack(plan.image, base)
        with boot_volume(base, writable=True, name=plan.image.name) as volume:
            system = identify(volume, plan.image.name)
            write_all(volume, _common_files(plan, system, flashed_at))
        for device, path in zip(devices, paths, strict=True):
            identity = plan.invite(device)
            last = path == paths[-1]
            card = base.rename(folder / "card.img") if last else Path(shutil.copy(base, folder / "card.img"))
            with boot_volume(card, writable=True) as volume:
                write_all(volume, _own_files(settings[device], system, identity, volume, flashed_at))
            # It holds a token, and keys of Wi-Fi networks.
            card.chmod(0o600)
            card.rename(path)
            yield device, path


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """A temporary folder next to the result, so a rename can put the result in place."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            yield Path(folder)
    except OSError as error:
        raise FlashError(f"cannot write {out}: {error.strerror or error}") from error


def _common_files(plan: CardPlan, system: OsImage, flashed_at: int) -> dict[str, bytes]:
    files = card_files(flashed_at)
    wheels = device_wheels(plan.wheelhouse, (system.python,), plan.sign)
    files |= {f"{CARD_FOLDER}/wheels/{name}": content for name, content in wheels.items()}
    return files | {f"{CARD_FOLDER}/data/{path.name}": path.read_bytes() for path in plan.data}


def _own_files(
    settings: CardSettings, system: OsImage, identity: DeviceFile, volume: FatVolume, flashed_at: int
) -> dict[str, bytes]:
    record = CardRecord(device=identity.device, fleet=identity.fleet, release=system.release, settings=settings)
    files, _ = setting_files(record, volume.read("cmdline.txt") or b"", flashed_at=flashed_at)
    return {**files, DEVICE_FILE_NAME: device_file_bytes(identity)}


def device_file_bytes(identity: DeviceFile) -> bytes:
    """A device's file as it goes on a card."""
    return msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"


def write_all(volume: FatVolume, files: dict[str, bytes]) -> None:
    """Write files and read them back; raises FlashError if there is too little room or the file system is damaged."""
    needed = sum(volume.size_on_disk(len(content)) for content in files.values()) + SPARE_BYTES
    if needed > volume.free_bytes:
        raise FlashError(
            f"the files for the card take {needed / 1e6:.0f} MB and the image's boot partition has "
            f"{volume.free_bytes / 1e6:.0f} MB free; take a newer image, or less --data"
        )
    for path, content in files.items():
        volume.write(path, content)
    # Only reading back reveals files that share clusters because of a damaged table.
    for path, content in files.items():
        if volume.read(path) != content:
            raise FlashError(
                f"{path} does not read back as it was written: the image's boot partition is damaged; download it again"
            )
