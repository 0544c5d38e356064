"""Whole runs with a web store: real nginx, real Mosquitto, a coordinator's and devices' processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.web_server import CuttingProxy, Nginx

from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = pytest.mark.mosquitto

SPARSYEDGE = str(Path(sys.executable).parent / "sparsyedge")
LIMIT_S = 300.0
DEVICES = 2


def run(
    folder: Path, artifacts: Artifacts, port: int, table: str = "", *, rounds: int = 2
) -> tuple[RunSummary, int, str]:
    """A run of a fleet named after its folder; returns its summary, the bytes that devices fetched, and the logs."""
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    common = f'fleet = "{folder.name}"\n'
    (folder / "run.toml").write_text(
        f'{common}name = "digits"\nartifacts = "{artifacts.directory}"\nrun_dir = "run"\ndataset = "digits"\n'
        f"rounds = {rounds}\ncohort_size = {DEVICES}\nseed = 1\ndeadline_s = {LIMIT_S}\n"
        f"[broker]\nport = {port}\n{table}"
    )
    devices = []
    for index in range(DEVICES):
        (folder / f"{index}.toml").write_text(
            f'{common}id = "device-{index}"\nwork_dir = "work"\nthreads = 1\nmeter = "none"\n[broker]\nport = {port}\n'
            f'[data]\ndataset = "digits"\n[data.partition]\ndevices = 8\nindex = {index}\n'
        )
        with (folder / f"{index}.log").open("wb") as log:
            command = [SPARSYEDGE, "edge", "--config", str(folder / f"{index}.toml"), "--until-finished"]
            devices.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
    try:
        command = [SPARSYEDGE, "coordinator", "run", str(folder / "run.toml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        for device in devices:
            device.wait(LIMIT_S)
    finally:
        for device in devices:
            if device.poll() is None:
                device.kill()
                device.wait(LIMIT_S)
    logs = "".join((folder / f"{index}.log").read_text() for index in range(DEVICES))
    with closing(Store.open(folder / "run")) as store:
        summary = store.summary()
    return summary, sum(each.bytes_down for each in summary.rounds), logs + done.stdout + done.stderr


def test_a_run_over_a_cut_web_server_alone_has_the_model_and_the_bytes_of_one_over_the_broker(
    nginx: Nginx, mosquitto: int, digits_artifacts: Artifacts, tmp_path: Path
) -> None:
    plain, plain_bytes, _ = run(tmp_path / "plain", digits_artifacts, mosquitto)
    proxy = CuttingProxy(nginx.port, cut_after=20_000)
    table = f'[blobs]\nurl = "{proxy.url}"\nput = "{nginx.root}"\nfallback = false\n'
    try:
        summary, web_bytes, logs = run(tmp_path / "web", digits_artifacts, mosquitto, table)
    finally:
        proxy.close()
    assert summary.run.model_id == plain.run.model_id
    assert web_bytes == plain_bytes > 0
    assert "blob store" not in logs
    requests = nginx.requests()
    assert {request.status for request in requests} == {200, 206}
    assert all(bool(request.range) == (request.status == 206) for request in requests)
    left = {path.name for path in nginx.root.rglob("*") if path.is_file()}
    files = digits_artifacts.manifest.files
    assert left & {file.sha256 for file in files.values()} == {files["skeleton"].sha256}, "only predictions need it now"


def test_a_run_goes_on_over_the_broker_when_nginx_is_down(
    nginx: Nginx, mosquitto: int, digits_artifacts: Artifacts, tmp_path: Path
) -> None:
    nginx.stop()
    table = f'[blobs]\nurl = "{nginx.url}"\nput = "{nginx.root}"\n'
    summary, fetched, logs = run(tmp_path / "web", digits_artifacts, mosquitto, table, rounds=1)
    assert summary.run.state == "finished"
    assert fetched > 0
    assert logs.count("fetching from the broker, also for the next 300 s") == DEVICES
    assert "cannot be fetched at `blobs.url` from here" in logs
