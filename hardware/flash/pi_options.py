"""The settings that `flash pi` takes as options, and how options, card.toml and a board's table make one card."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DeviceFile, read_device_file
from sparsyedge.edge.toml_text import merged_tables
from sparsyedge.hardware.flash.card import device_names, stock_settings
from sparsyedge.hardware.flash.card_file import (
    BoardKeys,
    CardFile,
    SettingKeys,
    WifiKeys,
    load_card_file,
    with_keys,
)
from sparsyedge.hardware.flash.card_settings import CardSettings, checked_settings
from sparsyedge.hardware.flash.setting_checks import checked_token_life

__all__ = ["Boards", "add_settings", "boards_of"]

DHCP = "dhcp"


@dataclass(frozen=True, kw_only=True)
class Boards:
    """The boards of one command, and what each of them is set to."""

    devices: list[str]
    options: SettingKeys
    hostname: str | None = None
    file: CardFile = field(default_factory=CardFile)
    folder: Path = Path()
    """Where card.toml is; the files that it names are looked for there."""
    ready: Mapping[str, DeviceFile] = field(default_factory=dict)
    """Identities that were made elsewhere."""

    def settings(self, device: str, base: CardSettings | None = None) -> CardSettings:
        """A board's settings, on top of its card's or a stock image's; raises FlashError if one is not allowed."""
        settings = with_keys(base or stock_settings(device), self.file, folder=self.folder)
        board = self._board(device)
        if board is not None:
            settings = with_keys(settings, board, folder=self.folder)
        options = self.options
        if self.hostname is not None:
            # Only a board's keys have a host name.
            settings = with_keys(settings, BoardKeys(id=device, hostname=self.hostname), folder=Path())
        return checked_settings(with_keys(settings, options, folder=Path()))

    def token_life(self, device: str) -> str | None:
        """How long the board's token is to be good; None for the authority's default."""
        board = self._board(device)
        for keys in (self.options, board, self.file):
            if keys is not None and keys.token_life is not None:
                return checked_token_life(keys.token_life)
        return None

    def _board(self, device: str) -> BoardKeys | None:
        return next((board for board in self.file.board if board.id == device), None)


def boards_of(arguments: argparse.Namespace, *, device: str | None = None) -> Boards:
    """The boards that the options and card.toml name, or the one whose card is to change."""
    file = CardFile() if arguments.card is None else load_card_file(arguments.card)
    folder = Path() if arguments.card is None else arguments.card.absolute().parent
    devices = [device] if device is not None else _devices(arguments, file)
    if arguments.hostname is not None and len(devices) > 1:
        raise FlashError(
            f"--hostname is {arguments.hostname} for {len(devices)} boards; give each its own in a [[board]] of --card"
        )
    return Boards(
        devices=devices,
        options=_option_keys(arguments),
        hostname=arguments.hostname,
        file=file,
        folder=folder,
        ready=_ready(arguments, file, folder, devices),
    )


def _devices(arguments: argparse.Namespace, file: CardFile) -> list[str]:
    if arguments.device_id is not None:
        return device_names(arguments.device_id, arguments.count)
    if not file.board:
        raise FlashError("nothing says whose card it is; add --device-id, or a [[board]] to the file of --card")
    if arguments.count != 1:
        raise FlashError("--count counts up from --device-id; leave it out, and --card makes a card for each [[board]]")
    return [board.id for board in file.board]


def _ready(arguments: argparse.Namespace, file: CardFile, folder: Path, devices: list[str]) -> dict[str, DeviceFile]:
    if arguments.device_file is not None:
        made = read_device_file(arguments.device_file)
        return {made.device: made}
    ready = {}
    for board in file.board:
        if board.device_file is not None and board.id in devices:
            made = read_device_file(folder / Path(board.device_file).expanduser())
            if made.device != board.id:
                raise FlashError(f"the device file of board {board.id} is for {made.device}; name its own")
            ready[board.id] = made
    return ready


# ---- options ---------------------------------------------------------------------------------------------------------


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    login = parser.add_argument_group("who may log in (nobody unless you say so; there is no default password)")
    login.add_argument("--user", metavar="NAME", help="this user, with sudo")
    login.add_argument("--ssh-key", action="append", metavar="FILE", help="a public key of that user (repeatable)")
    login.add_argument("--password-hash-file", metavar="FILE", help="a hash of `openssl passwd -6`, in a file")
    place = parser.add_argument_group("name, language and clock")
    place.add_argument("--hostname", metavar="NAME", help="the board's name in the network (default: the device id)")
    place.add_argument("--locale", metavar="NAME", help="such as de_DE.UTF-8")
    place.add_argument("--keyboard", metavar="LAYOUT[:VARIANT]", help="such as gb or de:nodeadkeys")
    place.add_argument("--time-zone", metavar="NAME", help="such as Europe/Berlin")
    network = parser.add_argument_group("network (a cable always works)")
    network.add_argument(
        "--wifi-ssid", action="append", metavar="NAME", help="a network to join (repeatable; the first is preferred)"
    )
    network.add_argument(
        "--wifi-password-file", action="append", type=Path, metavar="FILE", help="its password, in a file"
    )
    network.add_argument("--wifi-hidden", action="append", metavar="NAME", help="a network that hides its name")
    network.add_argument("--wifi-country", metavar="CC", help="where the radio is used, such as DE")
    network.add_argument(
        "--address", action="append", metavar="CIDR", help=f"a static address; `{DHCP}` takes it back (repeatable)"
    )
    network.add_argument("--gateway", action="append", metavar="IP", help="its gateway (one for IPv4, one for IPv6)")
    network.add_argument("--dns", action="append", metavar="IP", help="a name server (repeatable)")
    network.add_argument(
        "--address-on", choices=("cable", "wifi"), help="what has the address (default: Wi-Fi if there is any)"
    )
    device = parser.add_argument_group("device")
    device.add_argument("--token-life", metavar="TIME", help="how long the token is good, such as 30d (default: 24h)")
    device.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="a key of device.toml, such as threads=2 (repeatable)"
    )


def _option_keys(arguments: argparse.Namespace) -> SettingKeys:
    addresses = _texts(arguments.address)
    return SettingKeys(
        user=arguments.user,
        ssh_keys=_texts(arguments.ssh_key),
        password_hash_file=arguments.password_hash_file,
        locale=arguments.locale,
        keyboard=arguments.keyboard,
        time_zone=arguments.time_zone,
        wifi=_networks(arguments),
        wifi_country=arguments.wifi_country,
        addresses=() if addresses == (DHCP,) else addresses,
        gateways=_texts(arguments.gateway),
        dns=_texts(arguments.dns),
        address_on=arguments.address_on,
        token_life=arguments.token_life,
        device=_device_keys(arguments.set) if arguments.set else None,
    )


def _texts(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _networks(arguments: argparse.Namespace) -> tuple[WifiKeys, ...] | None:
    names, files = arguments.wifi_ssid or [], arguments.wifi_password_file or []
    hidden = arguments.wifi_hidden or []
    if len(files) > len(names):
        raise FlashError("--wifi-password-file needs --wifi-ssid, the name of the network")
    if len(files) < len(names):
        raise FlashError(
            "each --wifi-ssid needs a --wifi-password-file, so that no password stands in a shell's history; an open "
            "network goes into --card"
        )
    for name in hidden:
        if name not in names:
            raise FlashError(f"--wifi-hidden is {name!r}, which no --wifi-ssid names")
    if not names:
        return None
    # The first has the highest; one alone needs none.
    first = len(names) if len(names) > 1 else 0
    return tuple(
        WifiKeys(ssid=name, password_file=str(file), hidden=name in hidden, priority=max(0, first - number))
        for number, (name, file) in enumerate(zip(names, files, strict=True))
    )


def _device_keys(pairs: list[str]) -> dict[str, Any]:
    """Keys of device.toml from KEY=VALUE; a value that is not TOML is a string."""
    keys: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise FlashError(f"--set is {pair!r}, allowed is KEY=VALUE, such as limits.max_temperature_c=70")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        for part in reversed(name.strip().split(".")):
            value = {part: value}
        keys = merged_tables(keys, value)
    return keys
