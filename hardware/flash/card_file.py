"""card.toml: the settings of many boards in one file, with tables for what is particular to one of them.

The options of `flash pi` are one more such set of keys. Later sets win: the file, the board's table, the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sparsyedge.edge.config import Identifier, Section, load_config
from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.toml_text import merged_tables
from sparsyedge.hardware.flash import setting_checks as checks
from sparsyedge.hardware.flash.card_settings import CardSettings, Priority, StaticAddress, Wifi

__all__ = ["BoardKeys", "CardFile", "SettingKeys", "WifiKeys", "load_card_file", "with_keys"]

MAX_SECRET_BYTES = 4096
MAX_KEY_FILE_BYTES = 256 * 1024


class WifiKeys(Section, frozen=True):
    """One network: with the file of its password, with its key, or open."""

    ssid: str
    password_file: str | None = None
    """A file with the password in its first line."""
    psk: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{64}\Z")] | None = None
    """The key of 64 hexadecimal digits that `wpa_passphrase` prints, instead of a password."""
    open: bool = False
    """Whether the network has no password."""
    hidden: bool = False
    """Whether the network does not say its name."""
    priority: Priority = 0
    """The board prefers the network with the highest number."""


class SettingKeys(Section, frozen=True):
    """What boards can have in common; a key that is left out changes nothing."""

    user: str | None = None
    """Who may log in, with sudo and without a default password."""
    ssh_keys: tuple[str, ...] | None = None
    """Public keys of that user, as files or as the lines in them."""
    password_hash_file: str | None = None
    """A file with that user's password as a hash of crypt(5), for a keyboard at the board."""
    locale: str | None = None
    """Language and country, such as de_DE.UTF-8."""
    keyboard: str | None = None
    """The layout, such as de or de:nodeadkeys."""
    time_zone: str | None = None
    """Such as Europe/Berlin."""
    wifi: tuple[WifiKeys, ...] | None = None
    """The networks to join, as [[wifi]]."""
    wifi_country: str | None = None
    """Where the radio is used, such as DE."""
    addresses: tuple[str, ...] | None = None
    """Static addresses with the length of their network; an empty list stands for DHCP."""
    gateways: tuple[str, ...] | None = None
    """The way out of that network: one for IPv4, one for IPv6."""
    dns: tuple[str, ...] | None = None
    """Name servers."""
    address_on: Literal["cable", "wifi"] | None = None
    """Which of the board's networks has the static address; by default Wi-Fi if the card names one."""
    token_life: str | None = None
    """How long the token is good, such as 30d."""
    device: dict[str, Any] | None = None
    """Keys of device.toml, such as threads or [device.limits]."""


class BoardKeys(SettingKeys, frozen=True, kw_only=True):
    """What is particular to one board."""

    id: Identifier
    """The device's id."""
    hostname: str | None = None
    """The board's name in the network; by default its id."""
    device_file: str | None = None
    """What `coordinator token` made for this board, where the authority is elsewhere."""


class CardFile(SettingKeys, frozen=True):
    """card.toml: common keys, and a [[board]] for each board that has keys of its own."""

    board: tuple[BoardKeys, ...] = ()


def load_card_file(path: Path) -> CardFile:
    """Read card.toml; raises ConfigError that names the key, or FlashError if a board is there twice."""
    card = load_config(path, CardFile)
    ids = [board.id for board in card.board]
    for one in ids:
        if ids.count(one) > 1:
            raise FlashError(f"{path}: board {one} is there {ids.count(one)} times; name each once")
    return card


def with_keys(settings: CardSettings, keys: SettingKeys, *, folder: Path) -> CardSettings:
    """The settings with what these keys change; files that they name are looked for in `folder`."""
    simple = {name: getattr(keys, name) for name in ("user", "locale", "keyboard", "time_zone", "wifi_country")}
    changes: dict[str, Any] = {name: value for name, value in simple.items() if value is not None}
    if isinstance(keys, BoardKeys) and keys.hostname is not None:
        changes["hostname"] = keys.hostname
    if keys.ssh_keys is not None:
        changes["ssh_keys"] = tuple(line for named in keys.ssh_keys for line in _public_keys(named, folder))
    if keys.password_hash_file is not None:
        changes["password_hash"] = _secret(folder / Path(keys.password_hash_file).expanduser(), "password hash")
    if keys.wifi is not None:
        changes["wifi"] = tuple(_network(network, folder) for network in keys.wifi)
    if keys.device is not None:
        changes["device"] = merged_tables(settings.device, keys.device)
    changed = msgspec.structs.replace(settings, **changes)
    return msgspec.structs.replace(changed, address=_address(changed, keys))


def _address(settings: CardSettings, keys: SettingKeys) -> StaticAddress | None:
    before = settings.address
    if before is not None and keys.addresses == ():
        # Back to DHCP; name servers may still be chosen by hand.
        before = StaticAddress(dns=before.dns, on=before.on)
    base = before or StaticAddress(on="wifi" if settings.wifi else "cable")
    given = {"addresses": keys.addresses, "gateways": keys.gateways, "dns": keys.dns, "on": keys.address_on}
    changes = {name: value for name, value in given.items() if value is not None}
    address = msgspec.structs.replace(base, **changes)
    return address if address.addresses or address.gateways or address.dns else None


def _network(keys: WifiKeys, folder: Path) -> Wifi:
    given = sum((keys.password_file is not None, keys.psk is not None, keys.open))
    if given != 1:
        raise FlashError(
            f"Wi-Fi network {keys.ssid!r} has {given} of password_file, psk and open, allowed is exactly one of them"
        )
    psk = None
    if keys.psk is not None:
        psk = keys.psk.lower()
    elif keys.password_file is not None:
        password = _secret(folder / Path(keys.password_file).expanduser(), "Wi-Fi password")
        psk = checks.psk_of(keys.ssid, password)
    return Wifi(ssid=checks.checked_ssid(keys.ssid), psk=psk, hidden=keys.hidden, priority=keys.priority)


def _public_keys(named: str, folder: Path) -> list[str]:
    """A key itself, or the keys in a file of them."""
    if named.startswith(checks.SSH_KEY_KINDS):
        return [named]
    path = folder / Path(named).expanduser()
    text = _read(path, "ssh key", MAX_KEY_FILE_BYTES)
    if "PRIVATE KEY" in text:
        raise FlashError(f"{path} is a private key; name {path.name}.pub beside it, and keep this one secret")
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise FlashError(f"{path} has no ssh key; name a file such as ~/.ssh/id_ed25519.pub")
    return keys


def _secret(path: Path, what: str) -> str:
    """The first line of a file; no message shows it."""
    lines: Sequence[str] = _read(path, what, MAX_SECRET_BYTES).splitlines()
    return lines[0].rstrip("\r\n") if lines else ""


def _read(path: Path, what: str, limit: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise FlashError(f"cannot read the {what} from {path}: {reason}; check the path") from error
