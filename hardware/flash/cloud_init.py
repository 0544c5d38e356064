"""cloud-init's files for Trixie: user-data, network-config (netplan's format) and meta-data, on the boot partition.

All of it is JSON, which is valid YAML, so we need no quoting rules of our own.
"""

from __future__ import annotations

import json
from typing import Any

from sparsyedge.hardware.flash.card_settings import CardSettings, StaticAddress, Wifi
from sparsyedge.hardware.flash.first_boot import BOOT, CARD_FOLDER

__all__ = ["TRIGGER", "cloud_init_files"]

TRIGGER = "meta-data"
"""The file that makes a board act on the others: cloud-init runs once per instance id, which is in it."""
# Those of Raspberry Pi OS's first user; cloud-init makes groups that a system lacks.
GROUPS = (
    "users", "adm", "dialout", "audio", "netdev", "video", "plugdev", "cdrom", "games", "input", "gpio", "spi", "i2c",
    "render", "sudo",
)  # fmt: skip


def cloud_init_files(device: str, settings: CardSettings, *, flashed_at: int) -> dict[str, bytes]:
    """The files for one board; a new `flashed_at` has the board act on them once more."""
    return {
        "user-data": f"#cloud-config\n{json.dumps(_user_data(settings), indent=1)}\n".encode(),
        "network-config": json.dumps(_network(settings), indent=1).encode() + b"\n",
        TRIGGER: json.dumps({"instance-id": f"sparsyedge-{device}-{flashed_at}"}).encode() + b"\n",
    }


def _user_data(settings: CardSettings) -> dict[str, Any]:
    # The board's ssh host keys outlive an update of its card: whoever knows the board would be warned otherwise.
    data: dict[str, Any] = {"hostname": settings.hostname, "manage_etc_hosts": True, "ssh_deletekeys": False}
    commands: list[list[str]] = []
    if settings.time_zone is not None:
        data["timezone"] = settings.time_zone
    if settings.locale is not None:
        data["locale"] = settings.locale
        # Debian's locale-gen makes only what is listed here, whatever cloud-init asks it for.
        listed = {"path": "/etc/locale.gen", "content": f"{settings.locale} UTF-8\n", "append": True}
        data["write_files"] = [listed]
    if settings.keyboard is not None:
        layout, _, variant = settings.keyboard.partition(":")
        data["keyboard"] = {"layout": layout, "model": "pc105"} | ({"variant": variant} if variant else {})
    if settings.user is not None:
        data["users"] = [_user(settings)]
        data["ssh_pwauth"] = not settings.ssh_keys
        commands.append(["systemctl", "enable", "--now", "ssh"])
    return {**data, "runcmd": [*commands, ["sh", f"{BOOT}/{CARD_FOLDER}/install.sh", "start"]]}


def _user(settings: CardSettings) -> dict[str, Any]:
    user: dict[str, Any] = {
        "name": settings.user,
        "groups": ",".join(GROUPS),
        "shell": "/bin/bash",
        # Without a password nobody could give one to sudo.
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "lock_passwd": settings.password_hash is None,
    }
    if settings.password_hash is not None:
        user["passwd"] = settings.password_hash
    if settings.ssh_keys:
        user["ssh_authorized_keys"] = list(settings.ssh_keys)
    return user


def _network(settings: CardSettings) -> dict[str, Any]:
    static = settings.address
    wired = {"match": {"name": "e*"}, "optional": True, **_addresses(static, on="cable")}
    network: dict[str, Any] = {"version": 2, "ethernets": {"wired": wired}}
    if settings.wifi:
        # netplan has no word of its own for priorities. NetworkManager has, and must then be named here: cloud-init has
        # netplan check this file by itself, without the system's, which name it too.
        renderer = {"renderer": "NetworkManager"} if any(one.priority for one in settings.wifi) else {}
        network["wifis"] = {
            "wlan0": {
                **renderer,
                "optional": True,
                "regulatory-domain": settings.wifi_country,
                "access-points": {one.ssid: _access_point(one) for one in settings.wifi},
                **_addresses(static, on="wifi"),
            }
        }
    return network


def _addresses(static: StaticAddress | None, *, on: str) -> dict[str, Any]:
    if static is None or static.on != on:
        return {"dhcp4": True}
    keys: dict[str, Any] = {"dhcp4": not static.has(4)}
    if static.addresses:
        keys["addresses"] = list(static.addresses)
    if static.gateways:
        keys["routes"] = [{"to": "default", "via": gateway} for gateway in static.gateways]
    if static.dns:
        keys["nameservers"] = {"addresses": list(static.dns)}
    return keys


def _access_point(network: Wifi) -> dict[str, Any]:
    point: dict[str, Any] = {}
    if network.psk is not None:
        point["password"] = network.psk
    if network.hidden:
        point["hidden"] = True
    if network.priority:
        point["networkmanager"] = {"passthrough": {"connection.autoconnect-priority": str(network.priority)}}
    return point
