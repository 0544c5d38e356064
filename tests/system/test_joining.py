"""Devices that come and go while a secured run is under way, in real processes over a real Mosquitto."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.bench import LIMIT_S, Bench
from fixtures.secured import free_ports

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = pytest.mark.mosquitto


@pytest.fixture
def bench(tmp_path: Path, digits_artifacts: Artifacts) -> Iterator[Bench]:
    """A folder with an authority, its broker and a run that two devices can carry and three may take part in."""
    bench = Bench(tmp_path)
    ports = zip(("--port", "--enrol-port", "--coordinator-port"), map(str, free_ports(3)), strict=True)
    try:
        init = ("coordinator", "init", "fleet", "--host", "127.0.0.1", "--bind", "127.0.0.1")
        bench.call(*init, *(word for pair in ports for word in pair))
        bench.start("broker", "coordinator", "broker")
        shutil.copytree(digits_artifacts.directory, tmp_path / "artifacts")
        bench.call("coordinator", "sign", "artifacts")
        (tmp_path / "run.toml").write_text(
            'name = "digits"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\nauthority = "fleet"\n'
            "rounds = 500\ncohort_size = 3\nmin_updates = 1\nmin_devices = 2\ndeadline_s = 60.0\n"
        )
        yield bench
    finally:
        bench.end()


def join(bench: Bench, device: str, share: int) -> subprocess.Popen[bytes]:
    """Let a new device in and start it."""
    file, identity = f"{device}.json", f"identity-{device}"
    bench.call("coordinator", "token", device, "--dataset", "digits", "--share", f"{share}/12", "--out", file)
    bench.call("edge", "enrol", file, "--identity", identity, "--work-dir", "work", "--timeout", "120")
    return bench.start(device, "edge", "--config", f"{identity}/device.toml")


def accepted(bench: Bench, number: int) -> set[str]:
    with closing(Store.open(bench.folder / "run")) as store:
        return set(store.accepted(number))


def online(bench: Bench) -> set[str]:
    with closing(Store.open(bench.folder / "run")) as store:
        return {member.device for member in store.members() if member.online}


def test_a_device_that_joins_takes_part_in_the_next_round_and_one_that_leaves_is_not_missed(bench: Bench) -> None:
    coordinator = bench.start("coordinator", "coordinator", "run", "run.toml")
    first = join(bench, "pi-01", 0)
    join(bench, "pi-02", 1)
    bench.wait_until(lambda: bench.rounds_closed() >= 1, "the end of round 1")

    join(bench, "pi-03", 2)
    bench.wait_until(lambda: "pi-03" in online(bench), "the arrival of pi-03")
    # The round that was open when it came may close in the same moment; the one after that has it for certain.
    following = bench.rounds_closed() + 2
    bench.wait_until(lambda: bench.rounds_closed() >= following, "the end of the next round")
    assert accepted(bench, following) == {"pi-01", "pi-02", "pi-03"}

    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT_S) == 0, bench.log("pi-01")
    bench.wait_until(lambda: online(bench) == {"pi-02", "pi-03"}, "the word that pi-01 has left")
    without = bench.rounds_closed() + 2
    bench.wait_until(lambda: bench.rounds_closed() >= without, "two rounds without it")
    assert accepted(bench, without) == {"pi-02", "pi-03"}
    assert coordinator.poll() is None, bench.log("coordinator")

    said = " ".join(bench.call("coordinator", "devices", "run").split())
    assert "3 devices: " in said
    assert "1 offline" in said
    assert f"settings of pi-01, pi-02, pi-03: {own_software()}, Python 3." in said
    bench.call("coordinator", "stop", "run")
    assert coordinator.wait(LIMIT_S) == 0, bench.log("coordinator")
