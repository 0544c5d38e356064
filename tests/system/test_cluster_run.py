"""A federated run over a secured cluster of NATS, in real processes; once with a node killed in mid-round."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.bench import Bench
from fixtures.nats import NODES, nats_binary

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

DEVICES = ("pi-01", "pi-02")
ROUNDS = 4
RUN_LIMIT_S = 1200.0
"""Three nodes, a coordinator and two devices share the machine with whatever else it does."""


def free_base() -> int:
    """The first of three free ports in a row."""
    for base in range(20_000, 32_000, 10):
        probes = [socket.socket() for _ in range(NODES)]
        try:
            for offset, probe in enumerate(probes):
                probe.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        else:
            return base
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no three free ports in a row")


@pytest.fixture
def bench(tmp_path: Path, digits_artifacts: Artifacts) -> Iterator[Bench]:
    """A folder with an authority, and artifacts that it has signed; no node runs yet."""
    nats_binary()
    bench = Bench(tmp_path)
    port = free_base()
    try:
        bench.call(
            *("coordinator", "init", "fleet", "--broker", "nats", "--host", "127.0.0.1", "--bind", "127.0.0.1"),
            *("--port", str(port), "--cluster-port", str(port + NODES)),
        )
        shutil.copytree(digits_artifacts.directory, tmp_path / "artifacts")
        bench.call("coordinator", "sign", "artifacts")
        yield bench
    finally:
        bench.end()


def write_run(bench: Bench, run_dir: str) -> str:
    name = f"{run_dir}.toml"
    (bench.folder / name).write_text(
        f'name = "digits"\nartifacts = "artifacts"\nrun_dir = "{run_dir}"\ndataset = "digits"\nauthority = "fleet"\n'
        f"rounds = {ROUNDS}\ncohort_size = 2\nmin_devices = 2\ndeadline_s = 600.0\nepochs = 2\nholdout = 0.2\n"
        "[learning_rate]\nstart = 0.2\nend = 0.05\n"
    )
    return name


def wait_for_nodes(bench: Bench) -> None:
    authority = Authority.open(bench.folder / "fleet")

    def is_up() -> bool:
        try:
            with closing(authority.link("waiting")) as link:
                link.open()
            return True
        except LinkError:
            return False

    bench.wait_until(is_up, "a cluster that lets the coordinator in")


def model_of(bench: Bench, run_dir: str) -> str:
    with closing(Store.open(bench.folder / run_dir)) as store:
        assert len(store.rounds()) == ROUNDS
        assert all(set(store.accepted(number)) == set(DEVICES) for number in range(1, ROUNDS + 1))
        return store.rounds()[-1].model_id


def test_a_run_goes_on_without_a_node_and_ends_in_the_same_model(bench: Bench) -> None:
    nodes = [bench.start(f"node-{number}", "coordinator", "broker", "--node", str(number)) for number in range(1, 4)]
    wait_for_nodes(bench)
    coordinator = bench.start("coordinator-1", "coordinator", "run", write_run(bench, "calm"))
    for index, device in enumerate(DEVICES):
        file, identity = f"{device}.json", f"identity-{device}"
        bench.call("coordinator", "token", device, "--dataset", "digits", "--share", f"{index}/2", "--out", file)
        bench.call("edge", "enrol", file, "--identity", identity, "--work-dir", "work", "--timeout", "120")
        assert {"token", "entry_key"}.isdisjoint(json.loads((bench.folder / file).read_text()))
        bench.start(device, "edge", "--config", f"{identity}/device.toml")
    assert coordinator.wait(RUN_LIMIT_S) == 0, bench.log("coordinator-1")

    coordinator = bench.start("coordinator-2", "coordinator", "run", write_run(bench, "disturbed"))
    bench.wait_until(lambda: bench.rounds_closed("disturbed") >= 1, "the end of round 1")
    # The coordinator's node, and perhaps a device's.
    nodes[0].kill()
    assert bench.rounds_closed("disturbed") < ROUNDS, "the run was over before the node was lost"
    assert coordinator.wait(RUN_LIMIT_S) == 0, bench.log("coordinator-2")
    assert model_of(bench, "disturbed") == model_of(bench, "calm")
    assert "going from the broker at" in bench.log("coordinator-2")

    # The run is over and its node gone; the devices are still there, and answer over the two that are left.
    answer, _ = json.JSONDecoder().raw_decode(bench.call("coordinator", "evaluate", "disturbed", "--json"))
    assert [each["device"] for each in answer["devices"] if each["samples"]] == list(DEVICES)
