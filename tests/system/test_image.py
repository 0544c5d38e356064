"""The proof without hardware: a card that our command made boots with systemd and cloud-init, enrols and trains.

The card has every setting that an emulated board can show: who logs in, over ssh and to a static address, finds the
host name, the language, the keyboard, the time zone and the keys of device.toml. Then the card is changed with
`flash pi --update` and boots once more: other settings, the same device.

`make test-image` builds the image and the wheelhouse first, then runs this; everything is kept in build/image.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsyedge.edge.data import load
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME
from sparsyedge.hardware.arm.debian_image import IMAGE_NAME, INITRAMFS_NAME, KERNEL_NAME
from sparsyedge.hardware.flash.stock_image import boot_volume

WORK = Path(os.environ.get("SPARSYEDGE_IMAGE_DIR", "build/image")).resolve()
HOST = "10.0.2.2"
"""What qemu's user network calls the machine that it runs on."""
ADDRESS = "10.0.2.77"
"""An address of that network that its DHCP server does not give."""
BOOT_LIMIT_S = 2400.0
SAMPLES = 48

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def sparsyedge(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(command: list[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives as long as the block; its output goes to a file that stays."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def make_lab(folder: Path) -> None:
    """Everything on the operator's side: authority, artifacts signed for the board's op library, data, run file."""
    port, enrol_port, coordinator_port = free_ports(3)
    ports = ["--port", port, "--enrol-port", enrol_port, "--coordinator-port", coordinator_port]
    sparsyedge("coordinator", "init", "fleet", "--host", HOST, "--bind", "127.0.0.1", *ports, folder=folder)
    sparsyedge("export", "--dataset", "digits", "--width", "16", "--out", "artifacts", folder=folder)
    wheel = next((WORK / "wheels").glob("sparsyedge-*.whl"))
    sparsyedge("coordinator", "sign", "artifacts", "--op-library", str(wheel), folder=folder)
    digits = load("digits")
    arrays: dict[str, Any] = {"names": np.arange(10).astype(str)}
    for part, samples in (("train", digits.train), ("test", digits.test)):
        # Files have the channels last.
        arrays[f"x_{part}"] = samples.x[:SAMPLES].transpose(0, 2, 3, 1)
        arrays[f"y_{part}"] = samples.y[:SAMPLES]
    np.savez(folder / "board.npz", **arrays)
    (folder / "run.toml").write_text(
        'name = "image"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\nrounds = 2\ncohort_size = 1\n'
        'authority = "fleet"\ndeadline_s = 3000.0\nbatch_size = 16\n[learning_rate]\nstart = 0.1\nend = 0.05\n'
    )


def settings(folder: Path) -> list[str]:
    """Options of `flash pi` for a board in qemu's network, and the files that they name."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    (folder / "wifi.txt").write_text("correct horse\n")
    login = ["--user", "lab", "--ssh-key", "key.pub"]
    place = ["--hostname", "kitchen", "--locale", "de_DE.UTF-8", "--keyboard", "de:nodeadkeys"]
    wifi = ["--wifi-ssid", "it's home", "--wifi-password-file", "wifi.txt", "--wifi-country", "DE"]
    wifi += ["--wifi-ssid", "attic", "--wifi-password-file", "wifi.txt", "--wifi-hidden", "attic"]
    address = ["--address", f"{ADDRESS}/24", "--gateway", HOST, "--dns", "10.0.2.3", "--address-on", "cable"]
    device = ["--token-life", "2d", "--set", "threads=1", "--set", "limits.max_temperature_c=71"]
    return [*login, *place, "--time-zone", "Europe/Berlin", *wifi, *address, *device]


class Board:
    """A shell on the emulated board, over ssh."""

    def __init__(self, folder: Path, port: str) -> None:
        known = ["-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={folder / 'known_hosts'}"]
        quiet = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=60", "-o", "LogLevel=ERROR"]
        self._command = ["ssh", "-i", str(folder / "key"), "-p", port, *known, *quiet, "lab@127.0.0.1"]

    def run(self, command: str, *, check: bool = True) -> str:
        done = subprocess.run([*self._command, command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def wait_for(self, command: str, awaited: str, board: subprocess.Popen[bytes]) -> str:
        """Repeat a command until it prints this."""
        until_s = time.monotonic() + BOOT_LIMIT_S
        printed = ""
        while awaited not in printed:
            assert board.poll() is None, (WORK / "qemu.log").read_text()
            assert time.monotonic() < until_s, f"{command} prints {printed!r}, never {awaited!r}"
            time.sleep(5.0)
            printed = self.run(command, check=False)
        return printed


def check_settings(shell: Board) -> None:
    """The board is what its card says."""
    assert shell.run("hostname") == "kitchen"
    assert shell.run("readlink -f /etc/localtime").endswith("/Europe/Berlin")
    assert "LANG=de_DE.UTF-8" in shell.run("cat /etc/default/locale")
    assert "de_DE.utf8" in shell.run("locale -a")
    keyboard = shell.run("cat /etc/default/keyboard").replace('"', "")
    assert "XKBLAYOUT=de" in keyboard
    assert "XKBVARIANT=nodeadkeys" in keyboard
    assert f"{ADDRESS}/24" in shell.run("ip -4 -brief address")
    assert f"default via {HOST}" in shell.run("ip route")
    assert shell.run("sudo passwd --status lab").split()[1] == "L", "the user has a password"
    assert "passwordauthentication no" in shell.run("sudo sshd -T")
    config = shell.run("sudo cat /var/lib/sparsyedge/identity/device.toml")
    assert "threads = 1\n" in config
    assert "max_temperature_c = 71" in config
    netplan = shell.run("sudo cat /etc/netplan/50-cloud-init.yaml")
    assert "it's home" in netplan
    assert "attic" in netplan
    assert "autoconnect-priority" in netplan
    assert "correct horse" not in netplan
    status = json.loads(shell.run("cloud-init status --format json", check=False))
    print(f"cloud-init: {status['status']}, errors {status['errors']}, {status.get('recoverable_errors')}", flush=True)
    assert status["errors"] == []
    assert "umask=0077" in shell.run("cat /etc/fstab")


def qemu(card: Path, console: Path, ssh_port: str) -> list[str]:
    machine = ["-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "1024", "-accel", "tcg,thread=multi"]
    boot = ["-kernel", str(WORK / "stock" / KERNEL_NAME), "-initrd", str(WORK / "stock" / INITRAMFS_NAME)]
    with boot_volume(card) as volume:
        # On a busy machine an emulated board takes minutes to find its own disk; systemd gives it 90 s.
        command_line = (volume.read("cmdline.txt") or b"").decode().strip() + " systemd.default_device_timeout_sec=1800"
    network = f"user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{ssh_port}-{ADDRESS}:22"
    disk = ["-drive", f"file={card},format=raw,if=virtio", "-nic", network]
    screen = ["-display", "none", "-serial", f"file:{console}", "-no-reboot"]
    return ["qemu-system-aarch64", *machine, *boot, "-append", command_line, *disk, *screen]


def seconds_of(console: Path, mark: str) -> str:
    """When the board said something, by its own clock, for the record."""
    for line in console.read_text(errors="replace").splitlines():
        if mark in line:
            return line.split("]")[0].strip("[ ") if line.startswith("[") else "?"
    return "never"


def check_update(card: Path, folder: Path, shell: Board, ssh_port: str, identity: str) -> None:
    """A changed card: the board acts on it at its next start and is the same device, known by the same ssh host key."""
    change = ["--hostname", "cellar", "--time-zone", "Asia/Tokyo", "--set", "limits.max_temperature_c=61"]
    sparsyedge("flash", "pi", "--update", str(card), *change, folder=folder)
    booted_s = time.monotonic()
    with running(qemu(card, WORK / "console-updated.log", ssh_port), folder, WORK / "qemu.log") as board:
        config = "sudo cat /var/lib/sparsyedge/identity/device.toml"
        changed = shell.wait_for(config, "max_temperature_c = 61", board)
        print(f"boot to changed settings: {time.monotonic() - booted_s:.0f} s", flush=True)
        assert "threads = 1\n" in changed
        assert shell.run("hostname") == "cellar"
        assert shell.run("readlink -f /etc/localtime").endswith("/Asia/Tokyo")
        assert shell.run("sudo sha256sum /var/lib/sparsyedge/identity/device.pem") == identity
        assert shell.run("sudo stat -c %a /boot/firmware/user-data") == "700"
        shell.wait_for("systemctl is-enabled sparsyedge-firstboot.service", "disabled", board)
        shell.run("sudo systemctl poweroff", check=False)
        board.wait(600)


@pytest.mark.skipif(shutil.which("qemu-system-aarch64") is None, reason="no qemu-system-aarch64")
def test_a_flashed_card_boots_enrols_and_completes_a_run(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    make_lab(tmp_path)
    card, console = tmp_path / "card.img", WORK / "console.log"
    flash = ["flash", "pi", "--image", str(WORK / "stock" / IMAGE_NAME), "--out", str(card), "--device-id", "pi-07"]
    more = ["--coordinator", HOST, "--wheelhouse", str(WORK / "wheels"), "--data", "board.npz"]
    sparsyedge(*flash, *more, *settings(tmp_path), folder=tmp_path)
    print("\n" + sparsyedge("flash", "verify", str(card), folder=tmp_path))
    print(f"lab and card ready after {time.monotonic() - begun_s:.0f} s", flush=True)
    (ssh_port,) = free_ports(1)
    shell = Board(tmp_path, ssh_port)
    python = [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())"]
    with (
        running([*python, "coordinator", "broker", "--dir", "fleet"], tmp_path, WORK / "broker.log"),
        running([*python, "coordinator", "run", "run.toml"], tmp_path, WORK / "coordinator.log") as coordinator,
        running(qemu(card, console, ssh_port), tmp_path, WORK / "qemu.log") as board,
    ):
        booted_s = time.monotonic()
        while coordinator.poll() is None and time.monotonic() - booted_s < BOOT_LIMIT_S:
            assert board.poll() is None, (WORK / "qemu.log").read_text()
            time.sleep(1.0)
        assert coordinator.poll() == 0, (WORK / "coordinator.log").read_text()[-2000:]
        print(f"boot to finished run: {time.monotonic() - booted_s:.0f} s", flush=True)
        check_settings(shell)
        said = shell.wait_for("cat /run/issue.d/sparsyedge.issue", "sparsyedge: waiting for a run", board)
        print(f"on the console: {said}", flush=True)
        identity = shell.run("sudo sha256sum /var/lib/sparsyedge/identity/device.pem")
        shell.run("sudo systemctl poweroff", check=False)
        board.wait(600)
    for mark in ("Cloud-init v.", "install sparsyedge from the card", "sparsyedge-firstboot: enrol", "firstboot: done"):
        print(f"board clock at {mark!r}: {seconds_of(console, mark)} s")
    status = json.loads(sparsyedge("coordinator", "status", "run", "--json", folder=tmp_path))
    assert [round_["updates"] for round_ in status["rounds"]] == [1, 1]
    (device,) = status["devices"]
    print(f"{device['id']}: {device['steps']} steps, peak RSS {device['peak_rss_mb']:.0f} MB, {device['phases']}")
    assert device["id"] == "pi-07"
    members = json.loads(sparsyedge("coordinator", "identities", "--dir", "fleet", "--json", folder=tmp_path))
    assert [member["device"] for member in members["members"]] == ["pi-07"]
    with boot_volume(card) as volume:
        assert volume.read(DEVICE_FILE_NAME) is None, "the token is still on the card"
        assert volume.names("sparsyedge/wheels") == []
    check_update(card, tmp_path, shell, ssh_port, identity)
    print(f"all in all {time.monotonic() - begun_s:.0f} s")
