"""What a card makes of a stock system beside a device: its name, who may log in, language and network."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from sparsyedge.edge.config import DeviceConfig, Section, read_section
from sparsyedge.edge.errors import ConfigError, FlashError
from sparsyedge.hardware.flash import setting_checks as checks

__all__ = ["CardSettings", "StaticAddress", "Wifi", "checked_settings"]

Priority = Annotated[int, msgspec.Meta(ge=-999, le=999)]
MAX_KEYS = MAX_NETWORKS = MAX_ADDRESSES = 16
OWN_KEYS = ("id", "fleet", "identity", "data")
"""Keys of device.toml that come from the device's identity and its data, not from a card's settings."""


class Wifi(Section, frozen=True):
    """A network to join; `psk` is the key that WPA derives from the password, which itself goes on no card."""

    ssid: str
    psk: str | None = None
    """64 hexadecimal digits; an open network has none."""
    hidden: bool = False
    priority: Priority = 0
    """The board prefers the network with the highest number."""

    @classmethod
    def from_password(cls, ssid: str, password: str, *, hidden: bool = False, priority: int = 0) -> Wifi:
        """Derive the key as WPA does; raises FlashError if the password or network name is not allowed."""
        return cls(ssid=checks.checked_ssid(ssid), psk=checks.psk_of(ssid, password), hidden=hidden, priority=priority)


class StaticAddress(Section, frozen=True):
    """Addresses that the board has without asking a DHCP server."""

    addresses: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()
    gateways: Annotated[tuple[str, ...], msgspec.Meta(max_length=2)] = ()
    dns: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()
    on: Literal["cable", "wifi"] = "cable"

    def has(self, version: int) -> bool:
        """Whether there is an address of this version of IP."""
        return any(checks.read_address(one).version == version for one in self.addresses)


class CardSettings(Section, frozen=True):
    """The settings of one board; what is None stays as the stock image has it."""

    hostname: str
    user: str | None = None
    ssh_keys: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_KEYS)] = ()
    password_hash: str | None = None
    locale: str | None = None
    keyboard: str | None = None
    time_zone: str | None = None
    wifi: Annotated[tuple[Wifi, ...], msgspec.Meta(max_length=MAX_NETWORKS)] = ()
    wifi_country: str | None = None
    address: StaticAddress | None = None
    device: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys of device.toml."""


def checked_settings(settings: CardSettings) -> CardSettings:
    """The settings as they go on the card; raises FlashError with one sentence for the first that is not allowed."""
    if settings.user is None and (settings.ssh_keys or settings.password_hash):
        raise FlashError("an ssh key or a password hash is for a user; name one with --user")
    if settings.user is not None and not (settings.ssh_keys or settings.password_hash):
        raise FlashError(
            f"user {settings.user} could not log in, as there is no default password; add --ssh-key FILE or "
            "--password-hash-file FILE"
        )
    if settings.wifi and settings.wifi_country is None:
        raise FlashError("Wi-Fi needs --wifi-country, such as DE: it decides which channels the radio may use")
    ssids = [network.ssid for network in settings.wifi]
    for ssid in ssids:
        if ssids.count(ssid) > 1:
            raise FlashError(f"the Wi-Fi network {ssid} is there {ssids.count(ssid)} times; name each once")
    _check_device(settings.device)
    return msgspec.structs.replace(
        settings,
        hostname=checks.checked_hostname(settings.hostname),
        user=_if_there(checks.checked_user, settings.user),
        ssh_keys=tuple(map(checks.checked_ssh_key, settings.ssh_keys)),
        password_hash=_if_there(checks.checked_password_hash, settings.password_hash),
        locale=_if_there(checks.checked_locale, settings.locale),
        keyboard=_if_there(checks.checked_keyboard, settings.keyboard),
        time_zone=_if_there(checks.checked_time_zone, settings.time_zone),
        wifi=tuple(map(_checked_wifi, settings.wifi)),
        wifi_country=_if_there(checks.checked_country, settings.wifi_country),
        address=None if settings.address is None else _checked_address(settings),
    )


def _checked_wifi(network: Wifi) -> Wifi:
    """A network that may come from a card, where anybody can have written it."""
    checks.checked_ssid(network.ssid)
    if network.psk is not None and not re.fullmatch(r"[0-9a-f]{64}", network.psk):
        raise FlashError(
            f"the key of Wi-Fi network {network.ssid} is not 64 hexadecimal digits; give its password again"
        )
    return network


def _checked_address(settings: CardSettings) -> StaticAddress | None:
    static = settings.address
    assert static is not None
    addresses = [checks.read_address(text) for text in static.addresses]
    if not addresses:
        if static.gateways:
            raise FlashError("a gateway is for a static address; add --address, such as 192.168.1.50/24")
        return static if static.dns else None
    if static.on == "wifi" and not settings.wifi:
        raise FlashError(
            "the static address is for Wi-Fi, and no network is named; add one, or take --address-on cable"
        )
    for text in static.gateways:
        gateway = checks.checked_server(text, "gateway")
        near = any(gateway in address.network and gateway != address.ip for address in addresses)
        if not near and not (gateway.version == 6 and gateway.is_link_local):
            raise FlashError(f"gateway {gateway} is in none of the networks of {', '.join(static.addresses)}")
    versions = [checks.checked_server(text, "gateway").version for text in static.gateways]
    if len(set(versions)) < len(versions):
        raise FlashError(f"gateways are {', '.join(static.gateways)}, allowed is one for IPv4 and one for IPv6")
    for text in static.dns:
        checks.checked_server(text, "name server")
    return static


def _check_device(keys: dict[str, Any]) -> None:
    """Refuse keys that device.toml does not have or that are not a setting, and values out of bounds."""
    for name in OWN_KEYS:
        if name in keys:
            raise FlashError(f"key `{name}` of device.toml is the device's own and stays; leave it out")
    try:
        read_section({"id": "any", "data": {"dataset": "any"}, **keys}, DeviceConfig)
    except ConfigError as error:
        raise FlashError(f"device.toml would not be valid: {error}") from error


def _if_there(check: Any, value: str | None) -> str | None:
    return None if value is None else check(value)
