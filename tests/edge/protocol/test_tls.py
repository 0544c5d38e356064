"""When a link may go without TLS, and which certificates it trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from fixtures.secured import make_authority

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.tls import Tls, client_context, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST", "localhost."])
def test_this_machine_may_be_talked_to_in_the_clear(host: str) -> None:
    assert is_loopback(host)
    Link(host, 1883, identity="pi-01")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "192.168.1.7", "10.0.0.1", "::", "fe80::1", "coordinator.local", "localhost.evil.example", ""]
)
def test_any_other_host_needs_tls(host: str) -> None:
    with pytest.raises(SecurityError, match="no TLS is configured"):
        Link(host, 1883, identity="pi-01")


def handshake(client: ssl.SSLContext, authority: Authority, *, name: str) -> None:
    """A handshake without a network, between a device and a broker with this authority's server certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.folder / "server.pem", authority.folder / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_a_broker_is_believed_under_the_names_in_its_certificate_alone(authority: Authority, tmp_path: Path) -> None:
    trust = Tls(authority.folder / "ca.pem")
    handshake(client_context(trust), authority, name="127.0.0.1")
    handshake(client_context(trust), authority, name="localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(client_context(trust), authority, name="coordinator.local")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(client_context(trust), make_authority(tmp_path / "other"), name="127.0.0.1")


def test_tls_files_that_are_missing_or_no_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"absent\.pem"):
        Link("10.0.0.1", 8883, identity="pi-01", tls=Tls(tmp_path / "absent.pem"))
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(SecurityError, match=r"empty\.pem"):
        client_context(Tls(tmp_path / "empty.pem"))
