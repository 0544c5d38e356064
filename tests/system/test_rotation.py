"""A fleet's authority is replaced during a run, with real brokers and a real device that nobody touches."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.bench import LIMIT_S, Bench
from fixtures.boards import enrolled
from fixtures.nats import Nodes, enter, make_cluster, running
from fixtures.secured import free_ports, make_member

from sparsyedge.coordinator.authority import rotation
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.security.identity import Identity

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def bench(tmp_path: Path, digits_artifacts: Artifacts) -> Iterator[Bench]:
    """A folder with an authority, its broker, signed artifacts and a run of one device."""
    bench = Bench(tmp_path)
    member, newcomer, coordinator = map(str, free_ports(3))
    ports = ("--port", member, "--enrol-port", newcomer, "--coordinator-port", coordinator)
    try:
        bench.call("coordinator", "init", "fleet", "--host", "127.0.0.1", "--bind", "127.0.0.1", *ports)
        bench.start("broker", "coordinator", "broker")
        shutil.copytree(digits_artifacts.directory, tmp_path / "artifacts")
        bench.call("coordinator", "sign", "artifacts")
        (tmp_path / "run.toml").write_text(
            'name = "digits"\nartifacts = "artifacts"\nrun_dir = "run"\ndataset = "digits"\nauthority = "fleet"\n'
            "rounds = 100000\ncohort_size = 1\nmin_devices = 1\ndeadline_s = 60.0\n"
            "[learning_rate]\nstart = 0.2\nend = 0.05\n"
        )
        yield bench
    finally:
        bench.end()


def more_rounds(bench: Bench, number: int) -> None:
    wanted = bench.rounds_closed() + number
    bench.wait_until(lambda: bench.rounds_closed() >= wanted, f"{number} more rounds")


def is_let_in(authority: Authority, identity: Identity, device: str) -> bool:
    with closing(Link("127.0.0.1", authority.settings.port, identity=device, tls=identity.tls)) as link:
        try:
            link.open()
        except LinkError:
            return False
    return True


def test_a_run_goes_on_while_its_device_follows_the_fleet_to_another_authority(bench: Bench) -> None:
    authority = Authority.open(bench.folder / "fleet")
    coordinator = bench.start("coordinator", "coordinator", "run", "run.toml")
    bench.call("coordinator", "token", "pi-01", "--dataset", "digits", "--share", "0/20")
    bench.call(
        "edge", "enrol", "sparsyedge-device.json", "--identity", "pi-01", "--work-dir", "work", "--timeout", "120"
    )
    device = bench.start("device", "edge", "--config", "pi-01/device.toml")
    # A member that is switched off during all of it.
    absent = make_member(authority, "pi-02", bench.folder / "pi-02")
    assert is_let_in(authority, absent, "pi-02")
    more_rounds(bench, 2)
    old_key = authority.signing_key

    assert "of 2 devices follow" in bench.call("coordinator", "rotate")
    bench.wait_until(
        lambda: "1 of 2 devices follow the new authority; pi-02 not seen" in bench.call("coordinator", "rotate"),
        "the device's following",
    )
    more_rounds(bench, 2)
    assert authority.signing_key == old_key
    assert "--leave-behind pi-02" in bench.call("coordinator", "rotate", "--finish", code=2)
    said = bench.call("coordinator", "rotate", "--finish", "--leave-behind", "pi-02")
    assert "one authority is left" in said
    assert "the broker has read its files again" in said
    assert authority.signing_key != old_key

    bench.wait_until(
        lambda: Identity(bench.folder / "pi-01").signing_keys == (authority.signing_key,), "the old key's end"
    )
    more_rounds(bench, 2)
    # The device's next connection, after a power cut, knows the new authority alone.
    device.kill()
    device.wait(LIMIT_S)
    bench.start("device", "edge", "--config", "pi-01/device.toml")
    more_rounds(bench, 2)
    bench.call("coordinator", "stop", "run")
    assert coordinator.wait(LIMIT_S) == 0, bench.log("coordinator")

    assert not is_let_in(authority, absent, "pi-02")
    assert "refused a task" not in bench.log("device")
    assert "taking no part" not in bench.log("device")
    with closing(Store.open(bench.folder / "run")) as store:
        assert all(store.accepted(number) for number in range(1, len(store.rounds()) + 1))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    yield from running(Nodes(make_cluster(tmp_path / "fleet")))


def lets_in(place: tuple[str, int], identity: Identity) -> bool:
    with closing(Link(*place, identity=secrets.token_hex(8), tls=identity.tls)) as link:
        try:
            link.open()
        except LinkError:
            return False
    return True


def test_a_device_of_a_cluster_renews_its_certificate_under_the_next_authority(nodes: Nodes, tmp_path: Path) -> None:
    """Nodes of NATS read certificates, authorities and users again without a restart."""
    authority = nodes.authority
    board = enrolled(authority, "pi-01", tmp_path / "pi-01")
    shutil.copytree(board.folder, tmp_path / "before")
    before = Identity(tmp_path / "before")
    places = [("127.0.0.1", node.port) for node in nodes.cluster.nodes]

    def wait_until(condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s, f"{what}: {nodes.logs()}"
            board.courier.listen(0.1)
            board.watch.work()

    enter(nodes, 1, before.tls).close()
    link = Link(*places[0], identity=secrets.token_hex(8), tls=board.identity.tls, others=places[1:])
    link.open()
    with closing(link), serving(authority):
        board.start(link)
        state = rotation.begin(authority)
        wait_until(lambda: not rotation.headcount(authority, state).missing, "the device follows")
        wait_until(lambda: all(lets_in(place, board.identity) for place in places), "all nodes take the new one")
        rotation.finish(authority)
        wait_until(lambda: board.identity.signing_keys == (authority.signing_key,), "the old key is forgotten")
        wait_until(lambda: all(lets_in(place, board.identity) for place in places), "all nodes show the new one")
        wait_until(lambda: not any(lets_in(place, before) for place in places), "no node takes the old one")
