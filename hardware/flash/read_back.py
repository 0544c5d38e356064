"""Reads a card back: reports what it will do at first boot, and whether anything it needs is missing or damaged."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import FlashError, SecurityError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile
from sparsyedge.edge.security.wheel_list import LIST_NAME, check_list
from sparsyedge.edge.text import MAX_TEXT
from sparsyedge.hardware.flash.card_record import read_record
from sparsyedge.hardware.flash.card_settings import CardSettings
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.first_boot import CARD_FOLDER, card_files
from sparsyedge.hardware.flash.stock_image import OsImage, boot_volume, identify

__all__ = ["CardReport", "as_utc", "inspect_card", "inspect_volume"]


@dataclass(frozen=True, kw_only=True)
class CardReport:
    """What is on a card; never shows the token itself."""

    system: OsImage
    device: DeviceFile
    wheels: tuple[str, ...]
    data: tuple[str, ...]
    settings: CardSettings
    free_bytes: int

    def lines(self, *, now_s: float) -> list[str]:
        """The report as text for people."""
        device = self.device
        trains = "a config that somebody writes" if device.data is None else device.data.dataset
        return [
            f"system       Raspberry Pi OS {self.system.release}, 64-bit, Python {self.system.python}",
            f"first boot   {self.system.first_boot}",
            f"device       {device.device} of fleet {device.fleet}",
            f"coordinator  {device.host}, members {device.port}, new devices {device.enrol_port}",
            *(f"             or {broker.host}, port {broker.port}" for broker in device.others),
            *(["             or what announces itself in its network"] if device.find else []),
            f"token        {self._token(now_s)}",
            f"installs     sparsyedge from {len(self.wheels)} wheels on the card",
            f"trains on    {trains}" + (f" ({', '.join(self.data)} on the card)" if self.data else ""),
            *_setting_lines(self.settings),
            f"free         {self.free_bytes / 1e6:.0f} MB of the boot partition",
        ]

    def _token(self, now_s: float) -> str:
        until = self.device.token_until
        if self.device.token is None:
            return "none: it has been used"
        if until is None:
            return "there, good for one enrolment"
        if until < now_s:
            return f"expired at {as_utc(until)}: make another with `sparsyedge coordinator token {self.device.device}`"
        return f"there, good for one enrolment until {as_utc(until)}"


def as_utc(seconds: float) -> str:
    """A time as text for people."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def inspect_card(path: Path) -> CardReport:
    """Read a card made by `flash pi`; raises FlashError that names the first fault."""
    with boot_volume(path) as volume:
        return inspect_volume(volume, path)


def inspect_volume(volume: FatVolume, path: Path) -> CardReport:
    """The same for a card's boot partition."""
    device = _device(volume, path)
    system = identify(volume, path.name)
    _check_first_boot(volume, system, path)
    return CardReport(
        system=system,
        device=device,
        wheels=_checked_wheels(volume, path, device, system),
        data=tuple(volume.names(f"{CARD_FOLDER}/data")),
        settings=read_record(volume, path).settings,
        free_bytes=volume.free_bytes,
    )


def _device(volume: FatVolume, path: Path) -> DeviceFile:
    content = volume.read(DEVICE_FILE_NAME)
    if content is None:
        raise FlashError(f"{path} has no {DEVICE_FILE_NAME}: it is a stock image, or its device has enrolled already")
    try:
        return msgspec.json.decode(content, type=DeviceFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FlashError(f"{DEVICE_FILE_NAME} on {path} cannot be read: {error}; make the card again") from error


def _check_first_boot(volume: FatVolume, system: OsImage, path: Path) -> None:
    hooks = {"cloud-init": "user-data", "firstrun": "firstrun.sh"}
    hook = volume.read(hooks[system.first_boot]) or b""
    command_line = volume.read("cmdline.txt") or b""
    if b"install.sh" not in hook or (system.first_boot == "firstrun" and b"firstrun.sh" not in command_line):
        raise FlashError(f"{path} would not run its first boot: {hooks[system.first_boot]} is not ours; make it again")
    for name in card_files(0):
        if volume.read(name) is None:
            raise FlashError(f"{path} has no {name}; make the card again")


def _checked_wheels(volume: FatVolume, path: Path, device: DeviceFile, system: OsImage) -> tuple[str, ...]:
    """The wheels on the card; raises FlashError if the board would not install them."""
    folder = f"{CARD_FOLDER}/wheels"
    name = LIST_NAME.format(python=system.python)
    content, signature = volume.read(f"{folder}/{name}"), volume.read(f"{folder}/{name}.sig")
    if not content:
        raise FlashError(f"{path} has no wheels, so its board could not install sparsyedge; make the card again")
    try:
        listed = check_list(content, signature or b"", signing_key=device.signing_key, name=f"{name} on {path}")
    except SecurityError as error:
        raise FlashError(f"{error}; make the card again") from error
    for file, sha256 in listed.items():
        found = volume.read(f"{folder}/{file}")
        if found is None or hashlib.sha256(found).hexdigest() != sha256:
            raise FlashError(f"{file} on {path} is {'missing' if found is None else 'damaged'}; make the card again")
    return tuple(file for file in listed if file.endswith(".whl"))


def _setting_lines(settings: CardSettings) -> list[str]:
    """What the board is set to, without keys and hashes."""
    names = ", ".join(network.ssid for network in settings.wifi)
    network = f"cable and Wi-Fi {names} ({settings.wifi_country})" if names else "cable"
    static = settings.address
    if static is not None and static.addresses:
        network += f", {', '.join(static.addresses)} on {'Wi-Fi' if static.on == 'wifi' else 'the cable'}"
    login = "nobody"
    if settings.user is not None:
        count = len(settings.ssh_keys)
        means = [f"{count} ssh key{'s' if count > 1 else ''}"] if count else []
        login = f"{settings.user} with {' and '.join([*means, *(['a password'] if settings.password_hash else [])])}"
    place = [text for text in (settings.locale, settings.keyboard, settings.time_zone) if text is not None]
    lines = [
        f"host name    {settings.hostname}",
        f"network      {network}",
        f"may log in   {login}",
        *([f"set to       {', '.join(place)}"] if place else []),
        *([f"device.toml  also {', '.join(settings.device)}"] if settings.device else []),
    ]
    # Somebody else may have written the card, and this goes to a terminal.
    return ["".join(each if each.isprintable() else "?" for each in line[:MAX_TEXT]) for line in lines]
