"""Brokers that are found by mDNS: real multicast on loopback, real TLS, real Mosquitto."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fixtures.multicast import Announce, unique_fleet
from fixtures.secured import free_ports, make_authority, make_member, start_broker

from sparsyedge.coordinator.authority import mosquitto
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.protocol import mdns
from sparsyedge.edge.protocol.finder import Finder
from sparsyedge.edge.protocol.mdns import Announced, authority_fingerprint
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.route import Address, Route, search_delay_s

OURS = "a" * 64


def broker_of(fleet: str, *, authority: str = OURS, port: int = 8883, address: str = "127.0.0.1") -> Announced:
    return Announced(fleet=fleet, authority=authority, port=port, enrol_port=8884, addresses=(address,))


def test_a_broker_is_found_by_the_fleets_name_and_its_authority(announce: Announce) -> None:
    fleet = unique_fleet()
    announce(broker_of(fleet, port=18883))
    heard = mdns.listen(fleet, OURS)
    assert heard.brokers == (broker_of(fleet, port=18883),)
    assert heard.strangers == 0


def test_an_answer_with_another_authority_is_passed_over_and_counted(announce: Announce) -> None:
    fleet = unique_fleet()
    announce(broker_of(fleet, authority="b" * 64, port=1))
    announce(broker_of(fleet, port=2))
    announce(broker_of(unique_fleet(), port=3))
    heard = mdns.listen(fleet, "c" * 64, timeout_s=1.5)
    assert (heard.brokers, heard.strangers) == ((), 2)
    assert [found.port for found in mdns.listen(fleet, OURS).brokers] == [2]


def test_several_brokers_of_one_name_are_all_found(announce: Announce) -> None:
    """What counts is what an answer says; its instance has a name of its own."""
    fleet = f"{unique_fleet()}-{'x' * 50}"  # as long as a fleet's name can be
    for port in (1, 2, 3):
        announce(broker_of(fleet, port=port))
    ports: set[int] = set()
    for _ in range(10):  # each look ends soon after the first good answer
        ports |= {found.port for found in mdns.listen(fleet, OURS).brokers}
        if len(ports) == 3:
            break
    assert ports == {1, 2, 3}


def test_a_finder_says_whom_the_device_waits_for(announce: Announce, authority: Authority) -> None:
    fleet = unique_fleet()
    announce(broker_of(fleet, authority="b" * 64))
    finder = Finder(fleet, authority.folder / "ca.pem")
    assert finder.look() == []
    assert f"waiting for the broker of fleet {fleet}: nobody on this network announces it; 1 answers" in finder.waiting


def test_newcomers_find_the_port_that_is_for_them(announce: Announce, authority: Authority) -> None:
    fleet, ca = unique_fleet(), authority.folder / "ca.pem"
    announce(broker_of(fleet, authority=authority_fingerprint(ca), port=7))
    assert Finder(fleet, ca).look() == [Address("127.0.0.1", 7)]
    assert Finder(fleet, ca, for_newcomers=True).look() == [Address("127.0.0.1", 8884)]


@pytest.mark.parametrize("enrol_port", ["", "0", "65536", "-1", "8884x", "٨", "9" * 400])
def test_an_answer_with_a_port_that_is_none_is_not_read(enrol_port: str) -> None:
    from zeroconf import ServiceInfo

    info = ServiceInfo(
        mdns.SERVICE,
        f"lab.{mdns.SERVICE}",
        port=1,
        parsed_addresses=["127.0.0.1"],
        properties={"fleet": "lab", "ca": OURS, "enrol": enrol_port[:200]},
    )
    assert mdns._read(info) is None


def test_of_an_answer_with_many_addresses_a_few_are_taken_those_of_our_own_networks_first() -> None:
    from zeroconf import ServiceInfo

    info = ServiceInfo(
        mdns.SERVICE,
        f"lab.{mdns.SERVICE}",
        port=1,
        parsed_addresses=["0.0.0.0", "224.0.0.1", *(f"203.0.113.{number}" for number in range(1, 50)), "127.0.0.1"],
        properties={"fleet": "lab", "ca": OURS, "enrol": "2", b"\xff\xfe": b"\xff" * 200},
    )
    found = mdns._read(info)
    assert found is not None
    assert found.addresses == ("127.0.0.1", "203.0.113.1", "203.0.113.2", "203.0.113.3")


def test_a_device_without_an_authority_to_trust_does_not_connect_to_what_it_finds() -> None:
    with pytest.raises(SecurityError, match="no TLS is configured"):
        Link("127.0.0.1", 1, identity="d1", find=lambda: [Address("127.0.0.1", 2)])


# ---- the route, with a clock of its own ------------------------------------------------------------------------------


def test_a_route_looks_for_others_ever_more_rarely_and_tries_what_it_finds_first() -> None:
    now, looks = [0.0], 0
    found: list[Address] = []

    def find() -> list[Address]:
        nonlocal looks
        looks += 1
        return found

    route = Route([Address("named", 1)], None, find=find, clock=lambda: now[0])
    for _ in range(20):  # nobody answers, and hardly any time passes
        route.leave()
    assert looks == 1
    now[0] += search_delay_s(0) + 1
    route.leave()
    route.leave()
    assert looks == 2
    found.append(Address("found", 2))
    now[0] += search_delay_s(1) + 1
    assert route.leave() == 0.0
    assert route.address == Address("found", 2)
    route.leave()
    assert route.address == Address("named", 1)
    assert [search_delay_s(tries) for tries in (0, 1, 5, 1000)] == [5.0, 10.0, 60.0, 60.0]


# ---- a secured fleet whose broker has moved --------------------------------------------------------------------------


@pytest.mark.mosquitto
def test_impostors_are_passed_over_and_the_pinned_authority_decides(
    announce: Announce, secured: Authority, tmp_path: Path
) -> None:
    """One impostor has another authority; another copies the fingerprint of ours but has no certificate from it."""
    name = unique_fleet()
    impostor = make_authority(tmp_path / "impostor")
    process = start_broker(mosquitto.find(), impostor)
    identity = make_member(secured, "d1", tmp_path / "d1")
    try:
        ours = authority_fingerprint(secured.folder / "ca.pem")
        theirs = authority_fingerprint(impostor.folder / "ca.pem")
        announce(broker_of(name, authority=theirs, port=impostor.settings.port))
        announce(broker_of(name, authority=ours, port=impostor.settings.port))
        announce(broker_of(name, authority=ours, port=secured.settings.port))
        (gone,) = free_ports(1)
        finder = Finder(name, identity.tls.ca)
        link = Link("127.0.0.1", gone, identity="lab-d1", tls=identity.tls, find=finder.look)
        link.open(timeout_s=60)
        try:
            assert link.port == secured.settings.port
        finally:
            link.close()
    finally:
        process.terminate()
        process.wait(300)
    assert "d1" not in (impostor.folder / "mosquitto.log").read_text()


@pytest.mark.mosquitto
def test_a_member_with_a_stolen_certificate_cannot_play_the_broker(secured: Authority, tmp_path: Path) -> None:
    """A found broker may have any name, so it matters that no member's certificate is a server's."""
    member = make_member(secured, "d2", tmp_path / "d2")
    impostor = make_authority(tmp_path / "impostor")
    for name, path in (("server.pem", member.tls.certificate), ("server.key", member.tls.key)):
        assert path is not None
        (impostor.folder / name).write_bytes(path.read_bytes())
    process = start_broker(mosquitto.find(), impostor)
    identity = make_member(secured, "d1", tmp_path / "d1")
    (gone,) = free_ports(1)
    try:
        found = [Address("127.0.0.1", impostor.settings.port)]
        link = Link("127.0.0.1", gone, identity="lab-d1", tls=identity.tls, find=lambda: found)
        with pytest.raises(LinkError, match="unsuitable certificate purpose"):
            link.open(timeout_s=5)
    finally:
        process.terminate()
        process.wait(300)


@pytest.mark.mosquitto
def test_a_device_follows_its_broker_to_another_address(
    announce: Announce, authority: Authority, tmp_path: Path
) -> None:
    name, identity = unique_fleet(), make_member(authority, "d1", tmp_path / "d1")
    process = start_broker(mosquitto.find(), authority)
    link = Link(
        "127.0.0.1",
        authority.settings.port,
        identity="lab-d1",
        tls=identity.tls,
        find=Finder(name, identity.tls.ca).look,
    )
    try:
        link.open(timeout_s=60)
        process.terminate()
        process.wait(300)
        port, enrol_port, coordinator_port = free_ports(3)
        ports = {"port": port, "enrol_port": enrol_port, "coordinator_port": coordinator_port}
        moved = Authority(authority.folder, msgspec.structs.replace(authority.settings, **ports))
        moved.write_configuration()
        process = start_broker(mosquitto.find(), moved)
        announce(broker_of(name, authority=authority_fingerprint(identity.tls.ca), port=port))
        # It blocks until the link is up again, and a message goes to the broker that is there.
        link.publish("se/v1/lab/dev/d1/status", b"{}", timeout_s=120)
        assert link.port == port
    finally:
        link.close()
        process.terminate()
        process.wait(300)
