"""Coordinator and devices one minor version apart: an earlier release, from our own history, in a real run."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.bench import SPARSYEDGE, Bench
from fixtures.broker import Broker

from sparsyedge.coordinator.record.store import STORE_NAME
from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.hardware.flash.card_data import card_data

VARIABLE = "SPARSYEDGE_OLD_COMMAND"

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]


@pytest.fixture
def old() -> str:
    """The command of the earlier release."""
    command = os.environ.get(VARIABLE)
    if not command:
        pytest.skip(f"needs ${VARIABLE}; run `make test-versions`")
    return command


@pytest.fixture
def bench(tmp_path: Path, digits_artifacts: Artifacts, broker: Broker) -> Iterator[MixedBench]:
    bench = MixedBench(tmp_path, digits_artifacts, port=broker.port)
    try:
        yield bench
    finally:
        bench.end()


class MixedBench(Bench):
    """A fleet of two whose members need not be of one version."""

    def __init__(self, folder: Path, artifacts: Artifacts, *, port: int) -> None:
        super().__init__(folder)
        self.port = port
        shutil.copytree(artifacts.directory, folder / "artifacts")
        # The device's install of the earlier release has no scikit-learn: the digits travel as a file, as on cards.
        with card_data("digits") as data:
            assert data.file is not None
            shutil.copy(data.file, folder / "digits.npz")
        (folder / "run.toml").write_text(
            'name = "mixed"\nfleet = "lab"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits.npz"\n'
            "rounds = 3\ncohort_size = 2\nmin_updates = 2\nmin_devices = 2\ndeadline_s = 120.0\n"
            f'[broker]\nhost = "127.0.0.1"\nport = {self.port}\n[learning_rate]\nstart = 0.2\nend = 0.1\n'
        )

    def run_command(self, command: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [command, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        self._running.append(process)
        return process

    def add_device(self, command: str, device: str, index: int) -> None:
        (self.folder / f"{device}.toml").write_text(
            f'id = "{device}"\nfleet = "lab"\nwork_dir = "work"\nthreads = 1\nidle_s = 0\nmeter = "none"\n'
            f'[data]\ndataset = "digits.npz"\n[data.partition]\ndevices = 2\nindex = {index}\n'
            f'[broker]\nhost = "127.0.0.1"\nport = {self.port}\n'
        )
        self.run_command(command, device, "edge", "--config", f"{device}.toml", "--until-finished")

    def ask(self, query: str) -> dict[str, object]:
        """Ask the run's database itself: this version need not read the run of an earlier one."""
        with closing(sqlite3.connect(self.folder / "run" / STORE_NAME)) as database:
            return dict(database.execute(query).fetchall())


@pytest.mark.parametrize("leader", ["new", "old"])
def test_an_earlier_release_and_this_one_train_together(bench: MixedBench, old: str, leader: str) -> None:
    command = SPARSYEDGE if leader == "new" else old
    coordinator = bench.run_command(command, "coordinator", "coordinator", "run", "run.toml")
    bench.add_device(old, "old-device", 0)
    bench.add_device(SPARSYEDGE, "new-device", 1)
    bench.wait_until(lambda: coordinator.poll() is not None, "the end of the run")
    assert coordinator.returncode == 0, bench.log("coordinator")
    software = bench.ask("SELECT device, software FROM devices")
    assert software["old-device"] != software["new-device"] == own_software()
    assert bench.ask("SELECT device, COUNT(*) FROM updates GROUP BY device") == {"old-device": 3, "new-device": 3}
