"""The scripts of a phone's bundle in Termux's own folders, with stand-ins for what only a phone has."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures.phone import HOME, Phone
from fixtures.wheelhouses import a_wheelhouse_for_all

from sparsyedge.edge.cli import main

BUNDLE = "sparsyedge-phone-03.sh"
LIMIT_S = 120.0
# Stands in for the device: enrols without a network, and runs until it is ended.
ENROL = """#!/bin/sh
set -eu
identity=$5
mkdir -p "$identity"
printf '%s = 0\\n' only_on_charger wifi_only max_temperature_c threads > "$identity/device.toml"
echo "phone-03 is enrolled" """
DEVICE = """#!/bin/sh
echo "the device runs with $*"
exec sleep 31556
"""


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    """A phone that is switched on, with the bundle in its home."""
    monkeypatch.chdir(tmp_path)
    phone = Phone(tmp_path)
    assert main(["coordinator", "init", "fleet", "--host", "127.0.0.1"]) == 0
    a_wheelhouse_for_all(tmp_path / "wheels")
    assert main(["flash", "android", "--device-id", "phone-03", "--wheelhouse", "wheels"]) == 0
    shutil.copy(tmp_path / BUNDLE, phone.home / BUNDLE)
    for name, text in {"enrol": ENROL, "device": DEVICE}.items():
        (phone.home / name).write_text(text)
    phone.add_debian(f"sh {HOME}/enrol", f"sh {HOME}/device")
    phone.switch_on()
    try:
        yield phone
    finally:
        phone.switch_off()


def wait_until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, what()
        time.sleep(0.1)


def log_of(phone: Phone) -> str:
    log = phone.home / "sparsyedge/device.log"
    return log.read_text() if log.exists() else ""


def set_up(phone: Phone) -> subprocess.CompletedProcess[str]:
    done = phone.run("sh", BUNDLE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def devices(phone: Phone) -> int:
    return phone.running("sleep 31556")


@pytest.mark.heavy
def test_a_bundle_sets_the_phone_up_and_starts_the_device(phone: Phone) -> None:
    done = set_up(phone)
    assert done.stderr == ""
    assert "could not" not in done.stdout
    wait_until(lambda: devices(phone) == 1, lambda: log_of(phone))
    assert "-m sparsyedge.edge --config /root/.local/share/sparsyedge/identity/device.toml" in log_of(phone)
    config = (phone.state() / "identity/device.toml").read_text().splitlines()
    assert config == ["only_on_charger = true", "wifi_only = true", "max_temperature_c = 40.0", "threads = 2"]
    assert phone.calls().count("termux-wake-lock") == 1
    kept = {path.name for path in (phone.home / "sparsyedge").iterdir()}
    assert not kept & {"wheels", "data", "sparsyedge-device.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (phone.home / "sparsyedge").rglob("*"))


@pytest.mark.heavy
def test_what_failed_is_named_and_the_bundle_may_be_run_again(phone: Phone) -> None:
    offline = phone.prefix / "share/debian/offline"
    offline.touch()
    done = phone.run("sh", BUNDLE)
    assert done.returncode != 0
    assert "the registry cannot be reached" in done.stderr
    assert "sparsyedge: error: could not install a Debian (exit code 1); the reason is above. Then run" in done.stderr
    offline.unlink()
    good = (phone.home / "enrol").read_text()
    (phone.home / "enrol").write_text("echo 'sparsyedge: error: nobody answers' >&2; exit 2\n")
    done = phone.run("sh", BUNDLE)
    assert done.returncode == 2
    assert "error: nobody answers" in done.stderr
    assert "could not install and enrol in the Debian (exit code 2)" in done.stderr
    assert not (phone.home / ".termux/boot/sparsyedge").exists()
    assert (phone.home / "sparsyedge/sparsyedge-device.json").exists()
    (phone.home / "enrol").write_text(good)
    set_up(phone)
    assert sum(call == "proot-distro install debian" for call in phone.calls()) == 2


@pytest.mark.heavy
def test_a_device_that_ends_starts_again_and_never_runs_twice(phone: Phone) -> None:
    set_up(phone)
    wait_until(lambda: devices(phone) == 1, lambda: log_of(phone))
    # Termux:Boot, opened by hand, while the device runs.
    phone.finish_boot()
    (phone.home / "sparsyedge/device.log").write_text("x" * 2_000_000)
    # The bundle once more, with something new in it: the device that ran starts again.
    set_up(phone)
    wait_until(lambda: log_of(phone).count("the device runs with") == 1, lambda: log_of(phone)[-2000:])
    assert "the device has ended (exit code " in (phone.home / "sparsyedge/device.log.1").read_text()
    assert len(log_of(phone)) < 1000
    assert devices(phone) == 1
    assert phone.running("/.termux/boot/sparsyedge") == 1
    assert phone.calls().count("termux-wake-lock") == 1


@pytest.mark.heavy
def test_a_restart_starts_the_device(phone: Phone) -> None:
    set_up(phone)
    wait_until(lambda: devices(phone) == 1, lambda: log_of(phone))
    phone.switch_off()
    phone.switch_on()
    assert devices(phone) == 0
    phone.finish_boot()
    wait_until(lambda: devices(phone) == 1, lambda: log_of(phone))
    assert phone.calls().count("termux-wake-lock") == 2


@pytest.mark.heavy
def test_the_device_ends_as_the_documents_say(phone: Phone) -> None:
    set_up(phone)
    wait_until(lambda: devices(phone) == 1, lambda: log_of(phone))
    page = Path(__file__).parents[3] / "docs/how-to/phones.md"
    stop = next(line.strip() for line in page.read_text().splitlines() if line.startswith("    pkill"))
    # The shell's own command line would match, too; a person's has a terminal's name instead.
    for command in stop.split("; "):
        assert phone.run(*command.split()).returncode == 0
    wait_until(lambda: devices(phone) == 0, lambda: log_of(phone))
    assert phone.running("/.termux/boot/sparsyedge") == 0


@pytest.mark.heavy
def test_a_phone_without_the_app_is_told_at_once(phone: Phone) -> None:
    (phone.prefix / "var/answers/BatteryStatus").unlink()
    assert "sparsyedge: warning: the app Termux:API does not answer; install it" in set_up(phone).stderr


def test_elsewhere_than_in_termux_a_bundle_says_so(phone: Phone) -> None:
    (phone.prefix / "bin/pkg").unlink()
    done = phone.run("sh", BUNDLE)
    assert (done.returncode, done.stderr) == (
        2,
        "sparsyedge: error: this is not Termux; install it from F-Droid\n",
    )
    assert phone.calls() == []
