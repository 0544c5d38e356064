"""A phone, from its bundle to rounds of a secured fleet: set up, declining, taking part, and started after a restart.

The scripts and the device are the real ones. In the suite, the phone's Debian is this machine's own system, in which
sparsyedge is installed. `make test-phone` gives it a Debian for 64-bit ARM in which nothing is installed, under proot
and qemu as proot-distro would run it, and a bundle with the real wheels.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.bench import Bench
from fixtures.phone import Phone
from fixtures.secured import free_ports
from fixtures.wheelhouses import a_wheelhouse_for_all

from sparsyedge.coordinator.record.records import MemberRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import load
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts

DEVICE = "phone-03"
BUNDLE = f"sparsyedge-{DEVICE}.sh"
SAMPLES = 48
STATE = "/root/.local/share/sparsyedge"

pytestmark = pytest.mark.mosquitto


@dataclass
class Lab:
    """The operator's side, and a phone that is switched on."""

    bench: Bench
    phone: Phone
    limit_s: float
    begun_s: float = 0.0

    def note(self, what: str) -> None:
        """When something has happened, for the record of a slow run."""
        print(f"{time.monotonic() - self.begun_s:6.0f} s  {what}", flush=True)

    def member(self) -> MemberRecord | None:
        try:
            with closing(Store.open(self.bench.folder / "run")) as store:
                return next((one for one in store.members() if one.device == DEVICE), None)
        except RunError:
            return None

    def wait_for_reason(self, reason: str) -> None:
        """Until the coordinator has this as the phone's reason not to train; empty if it may."""

        def is_so() -> bool:
            member = self.member()
            return member is not None and member.online and member.unfit == reason

        self.bench.wait_until(is_so, f"the phone's reason {reason!r}", limit_s=self.limit_s)
        self.note(reason or "may train")
        shown = " ".join(self.bench.call("coordinator", "devices", "run").split())
        assert f"unfit: {reason}" in shown if reason else "unfit" not in shown

    def wait_for_round(self) -> None:
        """Until a round has closed that was open now."""
        closed = self.bench.rounds_closed()
        self.bench.wait_until(lambda: self.bench.rounds_closed() > closed, "another round", limit_s=self.limit_s)
        self.note(f"round {closed + 1} has closed")


def make_fleet(bench: Bench, artifacts: Artifacts, wheel: Path | None) -> None:
    ports = zip(("--port", "--enrol-port", "--coordinator-port"), map(str, free_ports(3)), strict=True)
    init = ("coordinator", "init", "fleet", "--host", "127.0.0.1", "--bind", "127.0.0.1")
    bench.call(*init, *(word for pair in ports for word in pair))
    shutil.copytree(artifacts.directory, bench.folder / "artifacts")
    library = () if wheel is None else ("--op-library", str(wheel))
    bench.call("coordinator", "sign", "artifacts", *library)
    digits = load("digits")
    arrays: dict[str, Any] = {"names": np.arange(10).astype(str)}
    for part, samples in (("train", digits.train), ("test", digits.test)):
        # Files have the channels last.
        arrays[f"x_{part}"] = samples.x[:SAMPLES].transpose(0, 2, 3, 1)
        arrays[f"y_{part}"] = samples.y[:SAMPLES]
    np.savez(bench.folder / "mine.npz", **arrays)
    (bench.folder / "run.toml").write_text(
        'name = "phone"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\nauthority = "fleet"\n'
        "rounds = 500\ncohort_size = 1\nmin_devices = 1\ndeadline_s = 3600.0\nbatch_size = 16\n"
    )


def make_phone(lab: Lab, wheels: Path) -> None:
    """Bundle, phone, broker and coordinator; the phone lies on a table, unplugged."""
    lab.bench.call("flash", "android", "--device-id", DEVICE, "--wheelhouse", str(wheels), "--data", "mine.npz")
    shutil.copy(lab.bench.folder / BUNDLE, lab.phone.home / BUNDLE)
    lab.bench.start("broker", "coordinator", "broker")
    lab.bench.start("coordinator", "coordinator", "run", "run.toml")
    lab.phone.tell_battery(plugged="UNPLUGGED", status="DISCHARGING", current=-421000)
    lab.phone.switch_on()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        bench.end()


@pytest.fixture
def lab(bench: Bench, tmp_path: Path, digits_artifacts: Artifacts) -> Iterator[Lab]:
    """The phone's Debian is this machine's system, with sparsyedge installed."""
    lab = Lab(bench, Phone(tmp_path), 300.0, time.monotonic())
    python = Path(sys.executable).absolute()
    lab.phone.add_debian(str(python.with_name("sparsyedge")), str(python))
    try:
        make_fleet(bench, digits_artifacts, None)
        make_phone(lab, a_wheelhouse_for_all(tmp_path / "wheels"))
        yield lab
    finally:
        lab.phone.switch_off()


@pytest.fixture
def arm_lab(bench: Bench, tmp_path: Path, digits_artifacts: Artifacts) -> Iterator[Lab]:
    """The phone's Debian is for 64-bit ARM, and nothing is installed in it."""
    named = os.environ.get("SPARSYEDGE_PHONE_DIR")
    if not named:
        pytest.skip("SPARSYEDGE_PHONE_DIR names no folder with a Debian tree and wheels; run `make test-phone`")
    if shutil.which("proot") is None:
        pytest.skip("no proot; on Debian: apt-get install proot")
    wheels = Path(named).resolve() / "wheels"
    lab = Lab(bench, Phone(tmp_path, tree=Path(named).resolve() / "debian"), 1800.0, time.monotonic())
    try:
        make_fleet(bench, digits_artifacts, next(wheels.glob("sparsyedge-*.whl")))
        make_phone(lab, wheels)
        yield lab
    finally:
        lab.phone.switch_off()


def log_of(lab: Lab) -> str:
    log = lab.phone.home / "sparsyedge/device.log"
    return log.read_text() if log.exists() else ""


def set_up(lab: Lab) -> None:
    """The owner's part: one command in Termux."""
    done = lab.phone.run("sh", BUNDLE, limit_s=lab.limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{DEVICE} is enrolled" in done.stdout
    assert "warning" not in done.stderr
    lab.note("set up: installed, enrolled, started")
    assert [call.split()[0] for call in lab.phone.calls()][:2] == ["pkg", "proot-distro"]
    left = sorted(path.name for path in (lab.phone.home / "sparsyedge").iterdir() if path.suffix == ".json")
    assert left == [], "the token is still on the phone"
    lab.bench.wait_until(lambda: "termux-wake-lock" in lab.phone.calls(), "the wake lock", limit_s=lab.limit_s)


def decline_and_take_part(lab: Lab) -> None:
    """Each reason not to train reaches the coordinator; each time it is gone, the phone trains."""
    phone = lab.phone
    lab.wait_for_reason("not on a charger, and only_on_charger is set")
    assert lab.bench.rounds_closed() == 0
    phone.tell_battery()
    lab.wait_for_round()
    phone.tell_battery(temperature=43.5)
    lab.wait_for_reason("temperature is 43.5 C, allowed are 40 C")
    phone.tell_battery(temperature=33.0)
    lab.wait_for_round()
    phone.tell_wifi(supplicant_state="DISCONNECTED", ssid="<unknown ssid>", ip="10.115.4.9", rssi=-127)
    lab.wait_for_reason("not on Wi-Fi, and wifi_only is set")
    phone.tell_wifi()
    lab.wait_for_round()


def lose_the_app(lab: Lab) -> None:
    """Without Termux:API nobody knows of charger and Wi-Fi, so the phone does not train."""
    lab.phone.silence_api()
    lab.wait_for_reason(
        "the app Termux:API does not tell whether this phone is on a charger, and only_on_charger is set"
    )
    lab.phone.silence_api(False)
    lab.wait_for_reason("")
    lab.wait_for_round()


def restart(lab: Lab) -> None:
    """The battery is empty, and the phone comes back: Termux:Boot starts the device, and nobody touches it."""
    lab.phone.switch_off()

    def is_offline() -> bool:
        member = lab.member()
        return member is not None and not member.online

    lab.bench.wait_until(is_offline, "the phone's absence", limit_s=lab.limit_s)
    lab.note("switched off")
    lab.phone.switch_on()
    lab.phone.finish_boot()
    lab.wait_for_reason("")
    lab.wait_for_round()


def finish(lab: Lab) -> None:
    with closing(Store.open(lab.bench.folder / "run")) as store:
        assert all(set(store.accepted(closed.round)) == {DEVICE} for closed in store.rounds())
    member = lab.member()
    assert member is not None
    assert member.refusals == ()
    assert member.alarm == ""


def test_a_phone_is_set_up_declines_with_its_reason_and_takes_part_again(lab: Lab) -> None:
    set_up(lab)
    config = (lab.phone.state() / "identity/device.toml").read_text()
    for line in ("only_on_charger = true", "wifi_only = true", "max_temperature_c = 40.0", "threads = 2"):
        assert f"\n{line}\n" in config
    decline_and_take_part(lab)
    restart(lab)
    finish(lab)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(shutil.which("qemu-aarch64-static") is None, reason="no qemu-aarch64-static")
def test_a_phone_with_a_debian_for_arm_installs_enrols_and_takes_part(arm_lab: Lab) -> None:
    set_up(arm_lab)
    decline_and_take_part(arm_lab)
    lose_the_app(arm_lab)
    restart(arm_lab)
    finish(arm_lab)
    print(log_of(arm_lab))
