"""A fleet that is upgraded over the air: real broker, real launchers, real pip and environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.releases import CRASHES_AT_START, UpgradableFleet, add_release
from fixtures.web_server import Nginx

from sparsyedge.coordinator.authority.authority import Authority

pytestmark = pytest.mark.mosquitto

SENT = (".whl", ".lock")


@pytest.fixture
def fleet(tmp_path: Path, secured: Authority) -> Iterator[UpgradableFleet]:
    fleet = UpgradableFleet(tmp_path, secured)
    try:
        yield fleet
    finally:
        fleet.end()


def test_devices_are_upgraded_canary_first_go_back_from_a_broken_release_and_return_when_told(
    fleet: UpgradableFleet, nginx: Nginx
) -> None:
    (fleet.folder / "run.toml").write_text(
        f'name = "digits"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\nrounds = 1\ncohort_size = 1\n'
        f'[blobs]\nurl = "{nginx.url}"\nput = "{nginx.root}"\nfallback = false\n'
    )
    for device in ("pi-01", "pi-02"):
        fleet.add_device(device)
        fleet.launch(device)
    fleet.wait_until(lambda: all("joined fleet" in fleet.log(device) for device in ("pi-01", "pi-02")), "the devices")
    good = add_release(fleet.folder / "good", "9.1")
    # Without chunks on the broker.
    said = fleet.fleet("update", "--wheelhouse", str(good), "--canary", "pi-02", "--store", "run.toml")
    assert said.index("canaries: pi-02") < said.index("pi-02: kept") < said.index("wave 1: pi-01")
    assert "done; 2 of 2 devices run it" in said
    assert fleet.current("pi-01") == fleet.current("pi-02") == "a"
    wheels = [request.path for request in nginx.requests() if request.path.startswith("/lab-release-")]
    assert len(wheels) == 2 * len(set(wheels)) == 2 * sum(1 for path in good.iterdir() if path.suffix in SENT)
    assert not list(nginx.root.iterdir())

    broken = add_release(fleet.folder / "broken", "9.2", CRASHES_AT_START)
    said = fleet.fleet("update", "--wheelhouse", str(broken), "--canary", "pi-01", code=1)
    assert "pi-01 failed: the new version ended with code 3 before the coordinator had acknowledged it" in said
    assert fleet.current("pi-01") == "a"

    status = fleet.fleet("status")
    assert status.count(" 9.1 ") == 2
    assert "returned" in status

    fleet.fleet("update", "--wheelhouse", str(good))
    fleet.fleet("rollback")
    assert fleet.current("pi-01") == fleet.current("pi-02") == "factory"
