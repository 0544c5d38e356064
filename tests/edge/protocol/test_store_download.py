"""Blobs from a web server: a real nginx, cut connections, and servers that lie, trickle or hang."""

from __future__ import annotations

import datetime
import ipaddress
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fixtures.web_server import CuttingProxy, Nginx, Scripted, nginx_binary, reply, unused_port

from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.protocol import http_download, store_download
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.store_download import download

CONTENT = random.Random(7).randbytes(300_000)
BLOB = blob_of(CONTENT)
OTHER = bytes(len(CONTENT))
Script = Callable[[socket.socket, bytes], None]
MakeServer = Callable[[Script], Scripted]


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_download, "RETRY_S", 0.01)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with little patience."""
    monkeypatch.setattr(store_download, "PATIENCE_S", 0.4)


def leave_a_part(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / BLOB.sha256).write_bytes(content)


def threads_of_downloads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("blob-")]


def until_no_thread_is_left() -> None:
    for thread in threads_of_downloads():
        thread.join(300.0)
    assert threads_of_downloads() == []


# ---- nginx -----------------------------------------------------------------------------------------------------------


def test_a_blob_comes_whole_from_nginx_and_leaves_no_file(nginx: Nginx, tmp_path: Path) -> None:
    (nginx.root / BLOB.sha256).write_bytes(CONTENT)
    counted: list[int] = []
    assert download(nginx.url, BLOB, tmp_path / "parts", count=counted.append) == CONTENT
    assert sum(counted) == BLOB.bytes
    assert list((tmp_path / "parts").iterdir()) == []


def test_a_blob_whose_connection_is_cut_again_and_again_is_resumed_by_ranges(nginx: Nginx, tmp_path: Path) -> None:
    (nginx.root / BLOB.sha256).write_bytes(CONTENT)
    proxy = CuttingProxy(nginx.port, cut_after=70_000)
    counted: list[int] = []
    try:
        assert download(proxy.url, BLOB, tmp_path / "parts", count=counted.append) == CONTENT
    finally:
        proxy.close()
    first, *resumed = nginx.requests()
    assert (first.status, first.range) == (200, "")
    assert len(resumed) >= 4
    starts = [int(request.range.removeprefix("bytes=").partition("-")[0]) for request in resumed]
    assert all(request.status == 206 for request in resumed)
    assert starts == sorted(set(starts))
    assert starts[0] > 0
    assert sum(counted) == BLOB.bytes, "no byte came twice"


def test_a_download_goes_on_after_a_restart_of_the_device_and_of_nginx(nginx: Nginx, tmp_path: Path) -> None:
    (nginx.root / BLOB.sha256).write_bytes(CONTENT)
    leave_a_part(tmp_path / "parts", CONTENT[:120_000])
    nginx.stop()
    nginx.start()
    assert download(nginx.url, BLOB, tmp_path / "parts") == CONTENT
    (request,) = nginx.requests()
    assert (request.range, request.status, request.sent_bytes) == ("bytes=120000-299999", 206, 180_000)


@pytest.mark.parametrize("left", [OTHER[:1000], CONTENT + b"more", OTHER], ids=["damaged", "too long", "wrong whole"])
def test_a_damaged_part_from_before_is_fetched_anew(nginx: Nginx, tmp_path: Path, left: bytes) -> None:
    (nginx.root / BLOB.sha256).write_bytes(CONTENT)
    leave_a_part(tmp_path / "parts", left)
    assert download(nginx.url, BLOB, tmp_path / "parts") == CONTENT


def test_what_is_left_of_another_blob_makes_way(nginx: Nginx, tmp_path: Path) -> None:
    (nginx.root / BLOB.sha256).write_bytes(CONTENT)
    leave_a_part(tmp_path / "parts", b"")
    (tmp_path / "parts" / "0123").write_bytes(b"an old part")
    download(nginx.url, BLOB, tmp_path / "parts")
    assert list((tmp_path / "parts").iterdir()) == []


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        (OTHER, "has other bytes under"),
        (CONTENT + b"!", "it has 300001 bytes to send, and 300000 were announced"),
        (CONTENT[:-1], "it has 299999 bytes to send, and 300000 were announced"),
        (None, "it answers 404"),
    ],
    ids=["other bytes", "longer", "shorter", "absent"],
)
def test_a_wrong_file_is_refused(nginx: Nginx, tmp_path: Path, served: bytes | None, reason: str) -> None:
    if served is not None:
        (nginx.root / BLOB.sha256).write_bytes(served)
    with pytest.raises(LinkError, match=reason):
        download(nginx.url, BLOB, tmp_path / "parts")
    assert list((tmp_path / "parts").iterdir()) == []


def test_an_empty_blob_needs_no_server(tmp_path: Path) -> None:
    assert download("http://127.0.0.1:1", blob_of(b""), tmp_path) == b""


def certificate_for(address: str, folder: Path) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a store")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return paths


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("address", "is_trusted", "reason"),
    [
        ("127.0.0.1", True, ""),
        ("127.0.0.1", False, "certificate verify failed"),
        ("127.0.0.2", True, "certificate verify failed: IP address mismatch"),
    ],
)
def test_https_is_checked_against_the_systems_authorities_and_the_fleets(
    tmp_path: Path, address: str, is_trusted: bool, reason: str
) -> None:
    paths = certificate_for(address, tmp_path / "tls")
    nginx = Nginx(nginx_binary(), tmp_path / "nginx", unused_port(), tls=paths)
    (nginx.root / BLOB.sha256).write_bytes(CONTENT)
    url, ca = nginx.url.replace("http", "https"), paths[0] if is_trusted else None
    nginx.start()
    try:
        if not reason:
            assert download(url, BLOB, tmp_path / "parts", ca=ca) == CONTENT
            return
        with pytest.raises(LinkError, match=reason):
            download(url, BLOB, tmp_path / "parts", ca=ca)
    finally:
        nginx.stop()


# ---- servers that lie ------------------------------------------------------------------------------------------------


def chunked(body: bytes) -> Script:
    """Sends a body without saying how long it is."""

    def script(client: socket.socket, request: bytes) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")

    return script


def test_a_server_that_does_not_say_how_long_the_body_is_will_do(scripted: MakeServer, tmp_path: Path) -> None:
    assert download(scripted(chunked(CONTENT + b"and more")).url, BLOB, tmp_path) == CONTENT


def test_a_server_that_cannot_resume_begins_again(scripted: MakeServer, tmp_path: Path) -> None:
    leave_a_part(tmp_path, CONTENT[:1000])
    server = scripted(reply("200 OK", CONTENT))
    assert download(server.url, BLOB, tmp_path) == CONTENT
    assert b"\r\nRange: bytes=1000-299999\r\n" in server.requests[0]


def test_a_request_carries_no_credentials_and_asks_for_no_encoding(scripted: MakeServer, tmp_path: Path) -> None:
    server = scripted(reply("200 OK", CONTENT))
    download(f"{server.url}/fleet/", BLOB, tmp_path)
    line, *headers = server.requests[0].decode().strip().split("\r\n")
    assert line == f"GET /fleet/{BLOB.sha256} HTTP/1.1"
    assert {header.partition(":")[0] for header in headers} == {"Host", "Accept-Encoding", "Connection"}
    assert "Accept-Encoding: identity" in headers


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (reply("302 Found", b"", "Location: http://127.0.0.1:1/other"), "it answers 302; devices follow no redirect"),
        (reply("301 Moved", b"", "Location: file:///etc/passwd"), "it answers 301; devices follow no redirect"),
        (reply("401 No", b"", 'WWW-Authenticate: Basic realm="x"'), "it answers 401"),
        (reply("503 Busy", b""), "it answers 503"),
        (reply("204 Nothing", b""), "it answers 204"),
        (reply("200 OK", CONTENT, "Content-Encoding: gzip"), "it sends the encoding 'gzip'"),
        (reply("206 Part", CONTENT, "Content-Range: bytes 5-300004/300005"), "it sends the range 'bytes 5-300004/3000"),
        (reply("206 Part", CONTENT), "it sends the range ''"),
        (reply("206 Part", CONTENT, "Content-Range: bytes " + "9" * 5000 + "-1/2"), "it sends the range 'bytes 999"),
        (reply("200 OK", b"", length=1 << 60), "it has 1152921504606846976 bytes to send"),
        (reply("200 OK", OTHER), "has other bytes under"),
        (chunked(CONTENT[:5]), "the connection ended too early|it answers|IncompleteRead"),
        (lambda client, request: client.sendall(b"\x1b[31mnot HTTP\r\n\r\n"), r"\?\[31mnot HTTP"),
        (lambda client, request: client.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000), "too long|more than"),
        (lambda client, request: client.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"), "more than 100"),
        (lambda client, request: None, "closed connection"),
    ],
)
def test_an_answer_that_cannot_be_the_blob_is_refused_in_one_line(
    scripted: MakeServer, tmp_path: Path, script: Script, reason: str
) -> None:
    with pytest.raises(LinkError, match=reason) as caught:
        download(scripted(script).url, BLOB, tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    until_no_thread_is_left()


def test_a_server_that_sends_all_but_the_end_over_and_over_is_given_up(scripted: MakeServer, tmp_path: Path) -> None:
    counted: list[int] = []
    server = scripted(reply("200 OK", CONTENT[:-1], length=len(CONTENT)))
    with pytest.raises(LinkError, match="the connection ended too early"):
        download(server.url, BLOB, tmp_path, count=counted.append)
    assert sum(counted) <= 4 * len(CONTENT)


def test_a_server_that_sends_one_byte_more_each_time_is_given_up(
    scripted: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_download, "SPARE_BYTES", 0)
    lengths = iter(range(100_000, 200_000))

    def script(client: socket.socket, request: bytes) -> None:
        reply("200 OK", CONTENT[: next(lengths)], length=len(CONTENT))(client, request)

    with pytest.raises(LinkError, match=r"it has sent 6.* bytes for 300000"):
        download(scripted(script).url, BLOB, tmp_path)


def test_a_server_that_is_down_is_given_up_after_three_attempts(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="Connection refused"):
        download(f"http://127.0.0.1:{unused_port()}", BLOB, tmp_path)


def endlessly(piece: bytes, pause_s: float, *, first: bytes = b"") -> Script:
    def script(client: socket.socket, request: bytes) -> None:
        client.sendall(first)
        while True:  # until the other side is gone
            client.sendall(piece)
            time.sleep(pause_s)

    return script


HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {BLOB.bytes}\r\n\r\n".encode()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "script",
    [
        endlessly(b"x", 0.02, first=HEAD),
        endlessly(b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
        endlessly(b"x", 0.02, first=b"HTTP/1.1 200 OK\r\nX: "),
        lambda client, request: client.recv(1),
        lambda client, request: (client.sendall(HEAD + b"x" * 100), client.recv(1)),
    ],
    ids=["trickle", "continue for ever", "header trickle", "silence", "silence in the body"],
)
def test_a_server_that_keeps_a_device_waiting_is_given_up_and_its_thread_ends(
    scripted: MakeServer, tmp_path: Path, script: Script
) -> None:
    started_s = time.monotonic()
    with pytest.raises(LinkError, match=r"sent .* bytes of .* in .* s, which is too slow"):
        download(scripted(script).url, BLOB, tmp_path)
    assert time.monotonic() - started_s < store_download.LONGEST_S / 2
    until_no_thread_is_left()


def test_a_slow_server_may_take_the_time_that_its_bytes_earn(
    scripted: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the first bytes take a while too.
    monkeypatch.setattr(store_download, "PATIENCE_S", 2.0)
    monkeypatch.setattr(store_download, "SLOWEST_BYTES_PER_S", 10_000)

    def script(client: socket.socket, request: bytes) -> None:
        client.sendall(HEAD)
        for start in range(0, len(CONTENT), 30_000):
            client.sendall(CONTENT[start : start + 30_000])
            time.sleep(0.25)

    assert download(scripted(script).url, BLOB, tmp_path) == CONTENT


def test_a_download_that_nobody_wants_any_more_is_dropped_and_its_part_stays(
    scripted: MakeServer, tmp_path: Path
) -> None:
    class NotWanted(Exception):
        pass

    def wait() -> None:
        if (tmp_path / BLOB.sha256).exists():
            raise NotWanted

    server = scripted(endlessly(b"", 0.02, first=HEAD + CONTENT[:1000]))
    with pytest.raises(NotWanted):
        download(server.url, BLOB, tmp_path, wait=wait)
    until_no_thread_is_left()
    server.close()
    assert CONTENT.startswith((tmp_path / BLOB.sha256).read_bytes())


def test_an_address_that_devices_do_not_use_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"cannot use the task's blob store: .* scheme 'file'; allowed: http, https"):
        download("file:///etc", BLOB, tmp_path)
