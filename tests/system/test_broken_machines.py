"""Disks that fill up or become read-only and clocks that jump by years, in real processes in the middle of a run."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.model_spec import ModelSpec

pytestmark = pytest.mark.mosquitto

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
GOOD, BROKEN = "d1", "d2"


class Lab:
    """A run of two devices that goes on until it is stopped; all processes are ended with the test."""

    def __init__(self, folder: Path, port: int, artifacts: Path) -> None:
        self.folder = folder
        self.work = folder / "work" / "default"
        self._running: list[subprocess.Popen[bytes]] = []
        for index, device in enumerate((GOOD, BROKEN)):
            (self.work / device).mkdir(parents=True)
            (folder / f"{device}.toml").write_text(
                f'id = "{device}"\nwork_dir = "work"\nthreads = 1\n[broker]\nport = {port}\n'
                # A device stops in time by default; it must not break where it does not.
                f'[limits]\nmin_free_disk_mb = 0\n[data]\ndataset = "digits"\n'
                f"[data.partition]\ndevices = 2\nindex = {index}\n"
            )
        (folder / "run.toml").write_text(
            f'name = "digits"\nartifacts = "{artifacts}"\nrun_dir = "run"\ndataset = "digits"\nrounds = 900\n'
            "cohort_size = 2\nmin_updates = 1\nmin_devices = 2\n[learning_rate]\nstart = 0.2\nend = 0.05\n"
            f"[broker]\nport = {port}\n"
        )

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [SPARSYEDGE, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
            )
        self._running.append(process)

    def start_run(self, **environments: dict[str, str]) -> None:
        """The coordinator and both devices, each with what the environment has for it by its name."""
        self.start("coordinator", "coordinator", "run", "run.toml", **environments.get("coordinator", {}))
        for device in (GOOD, BROKEN):
            self.start(device, "edge", "--config", f"{device}.toml", **environments.get(device, {}))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def read(self, question: Callable[[Store], int]) -> int:
        try:
            with closing(Store.open(self.folder / "run")) as store:
                return question(store)
        except RunError:
            return 0  # the run is only being set up

    def rounds(self) -> int:
        return self.read(lambda store: len(store.rounds()))

    def updates(self, device: str) -> int:
        return self.read(lambda store: sum(member.updates for member in store.members() if member.device == device))

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > until_s:
                logs = "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))
                pytest.fail(f"{what} did not happen within {LIMIT_S:g} s\n{logs}")
            assert self._running[0].poll() is None, self.log("coordinator")
            time.sleep(0.05)

    def wait_for_more(self, count: Callable[[], int], more: int, what: str) -> None:
        before = count()
        self.wait_until(lambda: count() >= before + more, what)

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_S)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "artifacts"
    spec = ModelSpec("resnet18", width=4, classes=10, input_shape=(3, 32, 32))
    build_artifacts(spec, make_method("sparsyfed", sparsity=0.9, beta=1.25), folder, seed=0, check=lambda *made: None)
    return folder


@pytest.fixture
def lab(tmp_path: Path, mosquitto: int, artifacts: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, mosquitto, artifacts)
    try:
        yield lab
    finally:
        lab.end()


# ---- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """A file system of its own for the device that is to break."""
    disk = lab.work / BROKEN
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield disk
    finally:
        lab.end()
        subprocess.run(["umount", str(disk)], check=True)


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


def make_read_only(disk: Path) -> None:
    remount(disk, "ro")


def make_writable(disk: Path) -> None:
    remount(disk, "rw")


def fill(disk: Path) -> None:
    with (disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):  # noqa: PT012
        while True:
            file.write(bytes(4096))


def clear(disk: Path) -> None:
    (disk / "full").unlink()


@pytest.mark.parametrize(
    ("break_it", "mend_it", "error"),
    [(make_read_only, make_writable, "Read-only file system"), (fill, clear, "No space left on device")],
    ids=["read-only", "full"],
)
def test_a_device_whose_disk_fails_says_so_and_takes_part_again_when_it_is_mended(
    lab: Lab,
    small_disk: Path,
    break_it: Callable[[Path], None],
    mend_it: Callable[[Path], None],
    error: str,
) -> None:
    lab.start_run()
    lab.wait_until(lambda: lab.updates(BROKEN) >= 2, "two updates of the device")
    break_it(small_disk)
    lab.wait_until(lambda: error in lab.log(BROKEN), "the error in the device's log")
    lab.wait_until(lambda: error in lab.log("coordinator"), "the reason in the coordinator's log")
    lab.wait_for_more(lab.rounds, 2, "a round without the device")
    mend_it(small_disk)
    lab.wait_for_more(lambda: lab.updates(BROKEN), 2, "two more updates of the device")
    assert "Traceback" not in lab.log(BROKEN) + lab.log("coordinator")


# ---- clocks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file with how far the clock is off, and the environment of a process that goes by it."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("no libfaketime; install it with: sudo apt-get install faketime")
    offset = tmp_path / "offset"
    offset.write_text("+0")
    environment = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        # Nobody sets this one, whatever the time of day.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    return offset, environment


@pytest.mark.parametrize("whose", ["coordinator", BROKEN])
def test_a_clock_that_jumps_by_years_in_mid_run_changes_nothing(
    lab: Lab, clock: tuple[Path, dict[str, str]], whose: str
) -> None:
    offset, environment = clock
    lab.start_run(**{whose: environment})
    lab.wait_until(lambda: lab.updates(BROKEN) >= 2, "two updates of the device")
    for days in (5 * 365, -30 * 365):
        offset.write_text(f"{days:+}d")
        for device in (GOOD, BROKEN):
            lab.wait_for_more(partial(lab.updates, device), 2, f"two updates of {device}, {days} days off")
        year = (datetime.datetime.now() + datetime.timedelta(days=days)).year
        assert re.search(rf"^{year}-", lab.log(whose), re.MULTILINE), "the clock did not jump"
    assert "Traceback" not in lab.log(BROKEN) + lab.log("coordinator")
