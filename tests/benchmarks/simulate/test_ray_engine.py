"""Simulated devices on a real Ray cluster of this machine: two nodes, of which one dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from fixtures.ray_cluster import RayCluster, started_cluster

from sparsyedge.benchmarks.simulate import load_simulated_run, simulate
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc, and all of 127.0.0.0/8"),
]

LIMIT_S = 300.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with started_cluster() as cluster:
        cluster.add_node()
        yield cluster


@pytest.fixture
def run_file(digits_artifacts: Artifacts, tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    # A lossy codec: what a device keeps for its next update must not be lost with a node.
    path.write_text(
        f'name = "sim"\nartifacts = "{digits_artifacts.directory}"\nrun_dir = "{tmp_path / "processes"}"\n'
        'dataset = "digits"\nrounds = 3\ncohort_size = 4\ncodec = "int8"\n'
        "[learning_rate]\nstart = 0.1\nend = 0.05\n"
        '[simulation]\ndevices = 6\nalpha = 0.5\nmeter = "none"\n'
    )
    return path


def start(run_file: Path, cluster: RayCluster) -> subprocess.Popen[str]:
    words = ["simulate", str(run_file), "--out", str(run_file.with_name("ray")), "--engine", "ray", "--json"]
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("sparsyedge")), *words, "--address", cluster.address],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_node_killed_in_mid_round_changes_no_model(run_file: Path, cluster: RayCluster) -> None:
    victim = cluster.add_node()
    process = start(run_file, cluster)
    # A device with a model trains in round 2 or later.
    in_turn = "sparsyedge-*/worker-*/device-*/models/*.frame"
    end_s = time.monotonic() + LIMIT_S
    while not list(cluster.scratch(victim).glob(in_turn)) and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.01)
    cluster.kill(victim)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert "is lost; a worker there was device-00" in err
    on_processes = simulate(load_simulated_run(run_file), workers=1)
    found = [
        (each["model_id"], each["bytes_down"], each["bytes_up"], each["updates"]) for each in json.loads(out)["rounds"]
    ]
    assert found == [(each.model_id, each.bytes_down, each.bytes_up, each.updates) for each in on_processes.rounds]
    # The nodes that live are left as they were.
    assert not list(cluster.scratch(0).glob("sparsyedge-*"))


def test_a_node_with_another_version_is_refused(run_file: Path, cluster: RayCluster, tmp_path: Path) -> None:
    other = tmp_path / "other" / "sparsyedge-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sparsyedge\nVersion: 0.0.1\n")
    cluster.add_node({"PYTHONPATH": str(other.parent)})
    process = start(run_file, cluster)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "of the Ray cluster has sparsyedge 0.0.1, this machine" in err
