"""The files that apply a card's settings, read by the programs that read them on a board if those can be installed."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparsyedge.hardware.flash import firstrun
from sparsyedge.hardware.flash.card_settings import CardSettings, StaticAddress, Wifi, checked_settings
from sparsyedge.hardware.flash.cloud_init import cloud_init_files
from sparsyedge.hardware.flash.firstrun import firstrun_files

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4 me@home, it's $mine"
HASH = "$6$saltsalt$" + "a" * 86
ODD_SSID = """it's "b" ; $x ü"""
STATIC = StaticAddress(
    addresses=("192.168.1.50/24", "fd00::50/64"), gateways=("192.168.1.1", "fd00::1"), dns=("9.9.9.9", "2620:fe::fe")
)
FULL = CardSettings(
    hostname="kitchen",
    user="lab",
    ssh_keys=(KEY,),
    locale="de_DE.UTF-8",
    keyboard="de:nodeadkeys",
    time_zone="Europe/Berlin",
    wifi=(
        Wifi(ssid="home", psk="ab" * 32, hidden=True, priority=2),
        Wifi(ssid=ODD_SSID, psk="cd" * 32, priority=1),
        Wifi(ssid="open"),
    ),
    wifi_country="DE",
    address=STATIC,
)
BARE_WIFI = CardSettings(hostname="pi-07", wifi=(Wifi(ssid="home", psk="ab" * 32),), wifi_country="DE")
NETPLAN = shutil.which("netplan") or shutil.which("netplan", path="/usr/sbin")


def test_these_settings_are_allowed() -> None:
    assert checked_settings(FULL) == FULL


# ---- Trixie ----------------------------------------------------------------------------------------------------------


def user_data(settings: CardSettings) -> dict[str, Any]:
    content = cloud_init_files("pi-07", settings, flashed_at=5)["user-data"]
    data: dict[str, Any] = json.loads(content.removeprefix(b"#cloud-config\n"))
    return data


@pytest.mark.skipif(shutil.which("cloud-init") is None, reason="no cloud-init (Debian: cloud-init)")
@pytest.mark.parametrize("settings", [FULL, CardSettings(hostname="pi-07")], ids=["full", "bare"])
def test_cloud_init_finds_the_user_data_valid(tmp_path: Path, settings: CardSettings) -> None:
    path = tmp_path / "user-data"
    path.write_bytes(cloud_init_files("pi-07", settings, flashed_at=5)["user-data"])
    done = subprocess.run(["cloud-init", "schema", "-c", str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Valid" in done.stdout


def test_who_logs_in_has_a_key_and_no_password() -> None:
    data = user_data(FULL)
    (user,) = data["users"]
    assert (user["name"], user["lock_passwd"], user["ssh_authorized_keys"]) == ("lab", True, [KEY])
    assert data["ssh_pwauth"] is False
    assert "passwd" not in user


def test_a_password_without_a_key_opens_ssh_to_passwords() -> None:
    data = user_data(CardSettings(hostname="pi", user="lab", password_hash=HASH))
    (user,) = data["users"]
    assert (user["passwd"], user["lock_passwd"], data["ssh_pwauth"]) == (HASH, False, True)


def test_without_a_user_nobody_is_made_and_ssh_stays_as_it_is() -> None:
    data = user_data(CardSettings(hostname="pi-07"))
    assert data["runcmd"] == [["sh", "/boot/firmware/sparsyedge/install.sh", "start"]]
    assert not {"users", "ssh_pwauth"} & set(data)


def generated(folder: Path, renderer: str) -> dict[str, str]:
    """What netplan makes of the network-config, by path."""
    config = json.loads(cloud_init_files("pi-07", FULL, flashed_at=5)["network-config"])
    etc = folder / "etc/netplan"
    etc.mkdir(parents=True)
    # cloud-init hands the config on under this key; Raspberry Pi OS has the renderer in a file of its own.
    (etc / "50-cloud-init.yaml").write_text(json.dumps({"network": {"renderer": renderer, **config}}))
    (etc / "50-cloud-init.yaml").chmod(0o600)
    assert NETPLAN is not None
    done = subprocess.run([NETPLAN, "generate", "--root-dir", str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [path for path in (folder / "run").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder / "run")): path.read_text() for path in paths}


@pytest.mark.skipif(NETPLAN is None, reason="no netplan (Debian: netplan.io)")
def test_netplan_makes_connections_for_network_manager(tmp_path: Path) -> None:
    made = generated(tmp_path, "NetworkManager")
    connections = {text for name, text in made.items() if name.endswith(".nmconnection")}
    (home,) = (text for text in connections if "ssid=home\n" in text)
    assert "autoconnect-priority=2" in home
    assert "hidden=true" in home
    assert f"psk={'ab' * 32}" in home
    (odd,) = (text for text in connections if f"ssid={ODD_SSID}\n" in text)
    assert "autoconnect-priority=1" in odd
    (wired,) = (text for text in connections if "type=ethernet" in text)
    for line in ("address1=192.168.1.50/24", "address1=fd00::50/64", "dns=9.9.9.9;", "route1=0.0.0.0/0,192.168.1.1"):
        assert line in wired
    assert wired.count("method=manual") == 2
    assert any("iw reg set DE" in text for text in made.values())


@pytest.mark.skipif(NETPLAN is None, reason="no netplan (Debian: netplan.io)")
def test_netplan_makes_networks_for_networkd(tmp_path: Path) -> None:
    made = generated(tmp_path, "networkd")
    wired = made["systemd/network/10-netplan-wired.network"]
    for line in ("Name=e*", "Address=192.168.1.50/24", "Gateway=192.168.1.1", "Gateway=fd00::1", "DNS=9.9.9.9"):
        assert f"{line}\n" in wired
    assert "DHCP=" not in wired
    assert any("autoconnect-priority=2" in text for text in made.values()), "only NetworkManager knows priorities"


def test_networks_with_priorities_name_the_program_that_knows_them() -> None:
    """Newer netplans refuse them otherwise, and the board would have no network at all."""
    for settings, renderer in ((FULL, "NetworkManager"), (BARE_WIFI, None)):
        config = json.loads(cloud_init_files("pi-07", settings, flashed_at=5)["network-config"])
        assert config["wifis"]["wlan0"].get("renderer") == renderer


def test_a_new_time_is_a_new_instance_and_nothing_else() -> None:
    first, second = (cloud_init_files("pi-07", FULL, flashed_at=time_s) for time_s in (5, 6))
    assert {name for name in first if first[name] != second[name]} == {"meta-data"}


# ---- Bookworm --------------------------------------------------------------------------------------------------------


def run_script(folder: Path, settings: CardSettings, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Run firstrun.sh in a folder; returns the calls of Raspberry Pi OS's own tools, which no other system has."""
    tools = folder / "tools"
    tools.mkdir()
    recorder = '#!/bin/sh\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\n\\0"; } >> "$CALLS"\n'
    for name in ("imager_custom", "userconf", "raspi-config", "passwd"):
        (tools / name).write_text(recorder)
        (tools / name).chmod(0o755)
    monkeypatch.setattr(firstrun, "IMAGER", str(tools / "imager_custom"))
    monkeypatch.setattr(firstrun, "USERCONF", str(tools / "userconf"))
    monkeypatch.setattr(firstrun, "CONNECTIONS", str(folder / "connections"))
    monkeypatch.setattr(firstrun, "BOOT", str(folder / "boot"))
    monkeypatch.setattr(firstrun, "KEYBOARD", str(folder / "keyboard"))
    (folder / "keyboard").write_text('XKBLAYOUT="de"\nXKBVARIANT=""\n')
    (folder / "connections").mkdir()
    (folder / "connections" / "sparsyedge-wifi-9.nmconnection").write_text("of an earlier card")
    (folder / "boot" / "sparsyedge").mkdir(parents=True)
    (folder / "boot" / "sparsyedge" / "install.sh").write_text('printf "install.sh\\0\\n\\0" >> "$CALLS"\n')
    for name, content in firstrun_files(settings, b"console=tty1 root=PARTUUID=1-02 quiet\n").items():
        (folder / "boot" / name).write_bytes(content)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(folder / "calls")}
    done = subprocess.run(
        ["sh", str(folder / "boot" / "firstrun.sh")], env=environment, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    calls = (folder / "calls").read_bytes().decode().split("\n\0")
    return [call.split("\0")[:-1] for call in calls if call]


def test_firstrun_calls_the_systems_own_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_script(tmp_path, FULL, monkeypatch) == [
        ["imager_custom", "set_hostname", "kitchen"],
        ["imager_custom", "enable_ssh", "-k", KEY],
        ["userconf", "lab", ""],
        ["passwd", "--lock", "lab"],
        ["imager_custom", "set_keymap", "de"],
        ["imager_custom", "set_timezone", "Europe/Berlin"],
        ["raspi-config", "nonint", "do_change_locale", "de_DE.UTF-8"],
        ["raspi-config", "nonint", "do_wifi_country", "DE"],
        ["install.sh"],
    ]
    assert (tmp_path / "keyboard").read_text() == 'XKBLAYOUT="de"\nXKBVARIANT="nodeadkeys"\n'
    assert not (tmp_path / "boot/firstrun.sh").exists()


def test_firstrun_writes_private_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_script(tmp_path, FULL, monkeypatch)
    paths = sorted((tmp_path / "connections").iterdir())
    assert [path.name for path in paths] == [
        "sparsyedge-cable.nmconnection",
        *(f"sparsyedge-wifi-{number}.nmconnection" for number in range(3)),
    ]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    files = []
    for path in paths:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(path.read_text())
        files.append(parser)
    cable, home, odd, open_ = files
    assert cable["ipv4"]["address1"] == "192.168.1.50/24"
    assert (cable["ipv4"]["gateway"], cable["ipv6"]["gateway"]) == ("192.168.1.1", "fd00::1")
    assert cable["ipv6"]["dns"] == "2620:fe::fe;"
    assert (home["connection"]["autoconnect-priority"], home["wifi"]["hidden"]) == ("2", "true")
    assert home["ipv4"]["method"] == "auto"
    assert bytes(map(int, odd["wifi"]["ssid"].rstrip(";").split(";"))).decode() == ODD_SSID
    assert "wifi-security" not in open_
    assert len({parser["connection"]["uuid"] for parser in files}) == 4


def test_the_command_line_runs_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = firstrun_files(FULL, b"console=tty1 systemd.run=/old quiet\n")["cmdline.txt"]
    assert line.startswith(b"console=tty1 quiet systemd.run=/boot/firmware/firstrun.sh ")
    assert firstrun_files(FULL, line)["cmdline.txt"] == line
