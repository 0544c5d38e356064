"""Our real wheel, upgraded over the air while a secured run trains: `make test-update`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.real_wheels import copied, other_wheelhouse
from fixtures.releases import UpgradableFleet

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.hardware.flash.card_data import card_data

VARIABLE = "SPARSYEDGE_WHEELHOUSE"
DEVICES = ("pi-01", "pi-02")
SAMPLES = 64
UPDATE_LIMIT_S = 1200.0
"""onnxruntime-training's wheel has 300 MB, and devices unpack it only while they wait for the next round."""

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto, pytest.mark.timeout(3600)]


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"needs ${VARIABLE}; run `make test-update`")
    return copied(Path(folder), tmp_path / "wheels")


@pytest.fixture
def factory(tmp_path: Path, wheelhouse: Path) -> Path:
    """What a card installs."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "factory"], check=True)
    lock = next(wheelhouse.glob("requirements-*.lock"))
    pip: list[str | Path] = [tmp_path / "factory" / "bin" / "pip", "install", "--quiet", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--require-hashes", "--find-links", wheelhouse, "--requirement", lock], check=True)
    return tmp_path / "factory"


@pytest.fixture
def fleet(tmp_path: Path, secured: Authority, digits_artifacts: Artifacts) -> Iterator[UpgradableFleet]:
    fleet = UpgradableFleet(tmp_path, secured)
    shutil.copytree(digits_artifacts.directory, tmp_path / "artifacts")
    (tmp_path / "run.toml").write_text(
        'name = "digits"\nfleet = "lab"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\n'
        'authority = "fleet"\nrounds = 5000\ncohort_size = 2\nmin_updates = 1\nmin_devices = 1\ndeadline_s = 60.0\n'
        "[learning_rate]\nstart = 0.1\nend = 0.05\n"
    )
    try:
        yield fleet
    finally:
        fleet.end()


def write_data(path: Path) -> None:
    """A few digits: rounds are short, and devices have breaks to install in."""
    with card_data("digits") as data:
        assert data.file is not None
        with np.load(data.file) as arrays:
            kept = {name: array[:SAMPLES] if name[:2] in ("x_", "y_") else array for name, array in arrays.items()}
    np.savez(path, **kept)


def test_real_wheels_are_installed_while_a_run_goes_on(fleet: UpgradableFleet, wheelhouse: Path, factory: Path) -> None:
    ours = next(wheelhouse.glob("sparsyedge-*.whl"))
    fleet.call("coordinator", "sign", "artifacts", "--dir", "fleet", "--op-library", str(ours))
    for device in DEVICES:
        fleet.add_device(device)
    write_data(fleet.folder / "data.npz")
    fleet.start("coordinator", "coordinator", "run", "run.toml")
    for device in DEVICES:
        fleet.launch(device, {"SPARSYEDGE_TRIAL_LIMIT_S": "300"}, factory=factory)
    fleet.wait_until(lambda: fleet.rounds_closed() >= 2, "two rounds before the upgrade")

    newer = other_wheelhouse(wheelhouse, "0.4.1", fleet.folder / "wheels-0.4.1")
    before, began_s = fleet.rounds_closed(), time.monotonic()
    said = fleet.fleet("update", "--wheelhouse", str(newer), "--canary", "pi-02", limit_s=UPDATE_LIMIT_S)
    print(f"{said}in {time.monotonic() - began_s:.0f} s, during {fleet.rounds_closed() - before} rounds")
    assert "done; 2 of 2 devices run it" in said
    present = fleet.rounds_closed()
    fleet.wait_until(lambda: fleet.rounds_closed() >= present + 2, "two rounds after the upgrade")
    assert fleet.call("coordinator", "devices", "run").count("0.4.1") >= 1

    # A module is missing, as after a bad build.
    broken = other_wheelhouse(
        wheelhouse, "0.4.2", fleet.folder / "wheels-0.4.2", without="sparsyedge/edge/device/agent.py"
    )
    said = fleet.fleet("update", "--wheelhouse", str(broken), "--canary", "pi-01", code=1, limit_s=UPDATE_LIMIT_S)
    print(said)
    assert "the self-check of release 0.4.2 failed" in said
    present = fleet.rounds_closed()
    fleet.wait_until(lambda: fleet.rounds_closed() >= present + 2, "two rounds after the refusal")

    fleet.fleet("update", "--wheelhouse", str(newer), limit_s=UPDATE_LIMIT_S)
    fleet.fleet("rollback")
    assert {fleet.current(device) for device in DEVICES} == {"factory"}
    present = fleet.rounds_closed()
    fleet.wait_until(lambda: fleet.rounds_closed() >= present + 2, "two rounds after the rollback")
