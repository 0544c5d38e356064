"""Bookworm's way: firstrun.sh, which systemd runs once instead of a normal boot, with Raspberry Pi OS's own tools.

NetworkManager's connections are files of our own, since those tools know neither several networks nor static addresses.
"""

from __future__ import annotations

import ipaddress
import shlex
import uuid

from sparsyedge.hardware.flash.card_settings import CardSettings, StaticAddress, Wifi
from sparsyedge.hardware.flash.first_boot import BOOT, CARD_FOLDER

__all__ = ["TRIGGER", "firstrun_files"]

TRIGGER = "cmdline.txt"
"""The file that makes a board act on firstrun.sh."""
IMAGER = "/usr/lib/raspberrypi-sys-mods/imager_custom"
USERCONF = "/usr/lib/userconf-pi/userconf"
KEYBOARD = "/etc/default/keyboard"
CONNECTIONS = "/etc/NetworkManager/system-connections"
RUN_ONCE = f"systemd.run={BOOT}/firstrun.sh systemd.run_success_action=reboot systemd.unit=kernel-command-line.target"
NAMESPACE = uuid.UUID("7a2b8a0e-8f8e-5c1a-9a53-3d6d0f3f6c11")


def firstrun_files(settings: CardSettings, command_line: bytes) -> dict[str, bytes]:
    """The script, and the kernel's command line that runs it once; then the board restarts."""
    lines = [
        "#!/bin/sh",
        "# Run once by systemd.run on the kernel's command line, then the board restarts.",
        *_system(settings),
        *_network(settings),
        f"sh {BOOT}/{CARD_FOLDER}/install.sh",
        f"rm -f {BOOT}/firstrun.sh",
        f"sed -i 's| systemd\\.[^ ]*||g' {BOOT}/cmdline.txt",
        "exit 0",
    ]
    # Bytes, as for the kernel: a stray non-ASCII byte is no reason to fail.
    words = [word for word in command_line.split() if not word.startswith(b"systemd.")]
    return {
        "firstrun.sh": "\n".join([*lines, ""]).encode(),
        TRIGGER: b" ".join((*words, RUN_ONCE.encode())) + b"\n",
    }


def _system(settings: CardSettings) -> list[str]:
    lines = [_command(IMAGER, "set_hostname", settings.hostname)]
    if settings.user is not None:
        # userconf renames the stock user, whose home then moves with the keys in it.
        keys_only = ("-k",) if settings.ssh_keys else ("-p",)
        lines.append(_command(IMAGER, "enable_ssh", *keys_only, *settings.ssh_keys))
        lines.append(_command(USERCONF, settings.user, settings.password_hash or ""))
        if settings.password_hash is None:
            lines.append(_command("passwd", "--lock", settings.user))
    if settings.keyboard is not None:
        layout, _, variant = settings.keyboard.partition(":")
        lines.append(_command(IMAGER, "set_keymap", layout))
        if variant:
            lines.append(f"sed -i 's/^XKBVARIANT=.*/XKBVARIANT=\"{variant}\"/' {KEYBOARD}")
    if settings.time_zone is not None:
        lines.append(_command(IMAGER, "set_timezone", settings.time_zone))
    if settings.locale is not None:
        lines.append(_command("raspi-config", "nonint", "do_change_locale", settings.locale))
    return lines


def _network(settings: CardSettings) -> list[str]:
    lines = [f"rm -f {CONNECTIONS}/sparsyedge-*.nmconnection"]
    if settings.wifi_country is not None:
        lines.append(_command("raspi-config", "nonint", "do_wifi_country", settings.wifi_country))
    for number, network in enumerate(settings.wifi):
        lines += _connection(f"sparsyedge-wifi-{number}", _wifi(network), settings.address, on="wifi")
    if settings.address is not None and settings.address.on == "cable":
        lines += _connection("sparsyedge-cable", ["autoconnect-priority=1"], settings.address, on="cable")
    return lines


def _wifi(network: Wifi) -> list[str]:
    # As a list of bytes a name may have any character; quoting rules of key files do not matter.
    ssid = "".join(f"{byte};" for byte in network.ssid.encode())
    lines = [f"autoconnect-priority={network.priority}", "", "[wifi]", "mode=infrastructure", f"ssid={ssid}"]
    if network.hidden:
        lines.append("hidden=true")
    if network.psk is not None:
        lines += ["", "[wifi-security]", "key-mgmt=wpa-psk", f"psk={network.psk}"]
    return lines


def _connection(name: str, more: list[str], static: StaticAddress | None, *, on: str) -> list[str]:
    """Shell lines that write a connection, readable by root alone, as NetworkManager demands."""
    kind = "wifi" if on == "wifi" else "ethernet"
    here = static if static is not None and static.on == on else None
    lines = ["[connection]", f"id={name}", f"uuid={uuid.uuid5(NAMESPACE, name)}", f"type={kind}", *more]
    for version in (4, 6):
        lines += ["", f"[ipv{version}]", *_addresses(here, version)]
    path = f"{CONNECTIONS}/{name}.nmconnection"
    return [f"(umask 077 && cat > {path} <<'CONNECTION'", *lines, "CONNECTION", ")"]


def _addresses(static: StaticAddress | None, version: int) -> list[str]:
    if static is None:
        return ["method=auto"]
    lines = ["method=manual" if static.has(version) else "method=auto"]
    lines += [f"address{number}={text}" for number, text in enumerate(_of(version, static.addresses), start=1)]
    lines += [f"gateway={text}" for text in _of(version, static.gateways)]
    servers = _of(version, static.dns)
    return lines + ([f"dns={''.join(f'{text};' for text in servers)}"] if servers else [])


def _of(version: int, addresses: tuple[str, ...]) -> list[str]:
    return [text for text in addresses if ipaddress.ip_interface(text).version == version]


def _command(*words: str) -> str:
    return " ".join(map(shlex.quote, words))
