"""The page as a process: where it listens, what it refuses to serve, and when it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.page_runs import accept, page

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.page_access import make_page_token, page_certificate
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.web.address import listen, parse_address
from sparsyedge.coordinator.web.server import choose_access
from sparsyedge.edge.errors import ConfigError, LinkError, RunError, SecurityError

LIMIT_S = 300.0


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9000", "127.0.0.1", 9000),
        (":9000", "127.0.0.1", 9000),
        ("9000", "127.0.0.1", 9000),
        ("0.0.0.0", "0.0.0.0", 8640),
        ("[::1]:9000", "::1", 9000),
        ("::1", "::1", 8640),
        ("localhost:0", "127.0.0.1", 0),
    ],
)
def test_an_address_may_leave_out_host_or_port(text: str, host: str, port: int) -> None:
    found = parse_address(text)
    assert (str(found.ip).replace("::1", host), found.port) == (host, port)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http", "no.such.host.invalid:80", "a b:1"]
)
def test_an_address_that_is_none_is_named(text: str) -> None:
    if text.endswith(":"):
        assert parse_address(text).port == 8640
        return
    with pytest.raises(ConfigError, match="the page's address is"):
        parse_address(text)


def test_a_port_that_is_taken_is_named() -> None:
    sentence = r"cannot listen at 127.0.0.1, port .* choose another port"
    with closing(listen(parse_address("127.0.0.1:0"))) as taken, pytest.raises(LinkError, match=sentence):
        listen(parse_address(f"127.0.0.1:{taken.getsockname()[1]}"))


def test_beyond_loopback_a_page_needs_an_authority(written_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"would be open to everybody .* --authority"):
        main(["web", str(written_run), "--address", "0.0.0.0:0"])


def test_beyond_loopback_a_page_needs_a_token(tmp_path: Path, authority_folder: Path) -> None:
    copied = tmp_path / "fleet"
    copied.mkdir()
    (copied / "fleet.json").write_bytes((authority_folder / "fleet.json").read_bytes())
    with pytest.raises(SecurityError, match="page-token --dir"):
        choose_access(parse_address("0.0.0.0:0"), authority=copied, given=None, login=False)


def test_a_certificate_without_its_key_is_refused(written_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        main(["web", str(written_run), "--certificate", str(tmp_path / "page.pem")])


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        main(["web", str(tmp_path / "absent")])


def test_options_of_the_page_need_the_page(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'name = "r"\nartifacts = "a"\nrun_dir = "run"\ndataset = "digits"\nrounds = 1\ncohort_size = 1\n'
        "[learning_rate]\nstart = 0.1\nend = 0.1\n"
    )
    with pytest.raises(ConfigError, match="add `--web`"):
        main(["run", str(tmp_path / "run.toml"), "--login"])


def test_init_prints_the_token_once_and_keeps_only_its_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "fleet"), "--host", "page.lab"]) == 0
    token = capsys.readouterr().out.partition("shown this once: ")[2].split()[0]
    for path in (tmp_path / "fleet").rglob("*"):
        assert path.is_dir() or token.encode() not in path.read_bytes(), path
    kept = tmp_path / "fleet" / "page-token.sha256"
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_bytes()
    assert main(["page-token", "--dir", str(tmp_path / "fleet")]) == 0
    assert kept.read_bytes() != before


def test_the_certificate_is_for_the_fleets_names_and_short_lived(authority_folder: Path) -> None:
    pair = page_certificate(Authority.open(authority_folder), ["10.1.2.3"])
    assert {"page.lab", "10.1.2.3", "localhost", "127.0.0.1"} <= set(pair.names())
    assert pair.key.stat().st_mode & 0o777 == 0o600
    assert page_certificate(Authority.open(authority_folder), ["10.1.2.3"]).certificate.read_bytes() == (
        pair.certificate.read_bytes()
    )


def events(connection: socket.socket, count: int) -> list[tuple[str, dict[str, object]]]:
    """The next events of a stream."""
    connection.settimeout(LIMIT_S)
    data = b""
    while data.count(b"\n\n") < count:
        received = connection.recv(1 << 16)
        assert received, data
        data += received.replace(b"\r\n", b"\n")
    found = []
    for block in data.split(b"\n\n"):
        name, _, rest = block.rpartition(b"event: ")[2].partition(b"\n")
        if rest.startswith(b"data: ") and name in (b"whole", b"change"):
            found.append((name.decode(), json.loads(rest[6:].splitlines()[0])))
    return found


@pytest.mark.heavy
def test_a_stream_brings_everything_and_then_what_changes(written_run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(written_run, tmp_path / "run")
    with page(run_dir) as (_, url), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as browser:
        host = url.removeprefix("http://")
        browser.sendall(f"GET /api/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        name, whole = events(browser, 2)[0]
        assert (name, len(whole["devices"])) == ("whole", 6)  # type: ignore[arg-type]
        with closing(Store.open(run_dir)) as store:
            accept(store, 5, "pi-003")
        name, change = events(browser, 1)[0]
        assert name == "change"
        assert [row["id"] for row in change["devices"]] == ["pi-003"]  # type: ignore[attr-defined]


@pytest.mark.heavy
def test_headers_without_end_and_a_flood_of_connections_do_not_stop_the_page(written_run: Path) -> None:
    with page(written_run) as (process, url):
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(place) as long:
            long.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000)
            long.settimeout(LIMIT_S)
            assert b"400" in long.recv(1000)
        idle = [socket.create_connection(place) for _ in range(300)]
        try:
            assert process.poll() is None
        finally:
            for connection in idle:
                connection.close()
        with socket.create_connection(place) as browser:
            browser.sendall(f"GET / HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\n\r\n".encode())
            browser.settimeout(LIMIT_S)
            assert b"200 OK" in browser.recv(1000)


PARENT = """
import sys, time
from pathlib import Path
from sparsyedge.coordinator.web.address import parse_address
from sparsyedge.coordinator.web.child import page_beside
from sparsyedge.coordinator.web.server import choose_access
from sparsyedge.edge.commands import logs
logs.set_up(); logs.set_level("info")
address = parse_address("127.0.0.1:" + sys.argv[2])
with page_beside(Path(sys.argv[1]), address, choose_access(address, authority=None, given=None, login=False)):
    print("serving", flush=True)
    sys.stdin.readline()
"""


def is_served(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as browser:
            browser.sendall(f"GET /api/me HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            return b"200 OK" in browser.recv(1000)
    except OSError:
        return False


def wait_until_served(port: int, wanted: bool) -> None:
    until_s = time.monotonic() + LIMIT_S
    while is_served(port) != wanted:
        assert time.monotonic() < until_s, f"the page should{'' if wanted else ' not'} be served"
        time.sleep(0.05)


@pytest.mark.heavy
@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_a_page_beside_a_run_ends_with_it_however_that_ends(
    written_run: Path, free_port: int, end: signal.Signals | None
) -> None:
    command = [sys.executable, "-c", PARENT, str(written_run), str(free_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        wait_until_served(free_port, True)
        if end is not None:
            os.kill(parent.pid, end)
    wait_until_served(free_port, False)


@pytest.mark.heavy
def test_a_page_that_cannot_start_does_not_harm_the_run(written_run: Path) -> None:
    with closing(listen(parse_address("127.0.0.1:0"))) as taken:
        command = [sys.executable, "-c", PARENT, str(written_run), str(taken.getsockname()[1])]
        done = subprocess.run(command, input=b"\n", capture_output=True, timeout=LIMIT_S, check=True)
    assert b"the run goes on without a page" in done.stderr
    assert b"serving" in done.stdout


@pytest.mark.heavy
def test_beyond_loopback_only_tls_is_spoken(written_run: Path, authority_folder: Path) -> None:
    make_page_token(authority_folder)
    options = ("--address", "0.0.0.0:0", "--authority", str(authority_folder))
    with page(written_run, *options) as (_, url):
        assert url.startswith("https://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        trusting = ssl.create_default_context(cafile=authority_folder / "ca.pem")
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as browser,
        ):
            browser.sendall(f"GET /api/me HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b"401 Unauthorized" in browser.recv(1000)
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert b"HTTP" not in plain.recv(1000)
