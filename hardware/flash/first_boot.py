"""The files that make a stock image run our first boot: cloud-init's for Trixie, firstrun.sh for Bookworm.

Both only install one service (card/install.sh). The first boot itself is in card/firstboot.sh, the same for both, so
supporting another way to customise images takes one more function here.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsyedge.edge.errors import FlashError

__all__ = ["CARD_FOLDER", "Wifi", "card_files", "cloud_init_files", "firstrun_files"]

CARD_FOLDER = "sparsyedge"
BOOT = "/boot/firmware"
_SOURCE = Path(__file__).with_name("card")
_RUN_ONCE = f"systemd.run={BOOT}/firstrun.sh systemd.run_success_action=reboot systemd.unit=kernel-command-line.target"


@dataclass(frozen=True)
class Wifi:
    """A network to join; `psk` is the key that WPA derives from the password, which itself goes on no card."""

    ssid: str
    psk: str
    country: str

    @classmethod
    def from_password(cls, ssid: str, password: str, country: str) -> Wifi:
        """Derive the key as WPA does; raises FlashError if the password or network name has an invalid length."""
        if not 8 <= len(password) <= 63:
            raise FlashError(f"the Wi-Fi password has {len(password)} characters, allowed are 8 to 63; check its file")
        if not 1 <= len(ssid.encode()) <= 32:
            raise FlashError(f"the Wi-Fi name has {len(ssid.encode())} bytes, allowed are 1 to 32")
        psk = hashlib.pbkdf2_hmac("sha1", password.encode(), ssid.encode(), 4096, 32).hex()
        return cls(ssid, psk, country)


def card_files(flashed_at: int) -> dict[str, bytes]:
    """The files on every card, whatever its system: the first-boot program and the services."""
    files = {f"{CARD_FOLDER}/{path.name}": path.read_bytes() for path in sorted(_SOURCE.iterdir())}
    return {**files, f"{CARD_FOLDER}/flashed_at": f"{flashed_at}\n".encode()}


def cloud_init_files(device: str, wifi: Wifi | None, *, flashed_at: int) -> dict[str, bytes]:
    """Trixie: a host name, the network and one command. JSON is valid YAML, so we need no quoting rules of our own."""
    user = {"hostname": device, "runcmd": [["sh", f"{BOOT}/{CARD_FOLDER}/install.sh", "start"]]}
    network: dict[str, Any] = {
        "version": 2,
        "ethernets": {"wired": {"match": {"name": "e*"}, "dhcp4": True, "optional": True}},
    }
    if wifi is not None:
        network["wifis"] = {
            "wlan0": {
                "dhcp4": True,
                "optional": True,
                "regulatory-domain": wifi.country,
                "access-points": {wifi.ssid: {"password": wifi.psk}},
            }
        }
    return {
        "user-data": f"#cloud-config\n{json.dumps(user, indent=1)}\n".encode(),
        # cloud-init runs once per instance id, so a new id triggers a new first boot.
        "meta-data": json.dumps({"instance-id": f"sparsyedge-{device}-{flashed_at}"}).encode() + b"\n",
        "network-config": json.dumps(network, indent=1).encode() + b"\n",
    }


def firstrun_files(device: str, wifi: Wifi | None, command_line: bytes) -> dict[str, bytes]:
    """Bookworm: a script that systemd runs once, instead of a normal boot; then the board restarts."""
    imager = "/usr/lib/raspberrypi-sys-mods/imager_custom"
    lines = [
        "#!/bin/sh",
        "# Run once by systemd.run on the kernel's command line, then the board restarts.",
        f"{imager} set_hostname {shlex.quote(device)}",
    ]
    if wifi is not None:
        lines.append(f"{imager} set_wlan {shlex.quote(wifi.ssid)} {wifi.psk} {wifi.country}")
    lines += [
        f"sh {BOOT}/{CARD_FOLDER}/install.sh",
        f"rm -f {BOOT}/firstrun.sh",
        f"sed -i 's| systemd\\.[^ ]*||g' {BOOT}/cmdline.txt",
        "exit 0",
    ]
    # Bytes, as for the kernel: a stray non-ASCII byte is no reason to fail.
    words = [word for word in command_line.split() if not word.startswith(b"systemd.")]
    return {
        "firstrun.sh": "\n".join([*lines, ""]).encode(),
        "cmdline.txt": b" ".join((*words, _RUN_ONCE.encode())) + b"\n",
    }
