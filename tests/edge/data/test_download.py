from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sparsyedge.edge.data.cifar import CIFAR100, CifarVersion
from sparsyedge.edge.data.download import Archive, fetch
from sparsyedge.edge.data.loaders import load_cifar
from sparsyedge.edge.errors import DataError

FILES = ("train.bin", "test.bin")
FOLDER = "cifar-100-binary"


@dataclass
class Site:
    """What the server on loopback answers, and how often it was asked."""

    url: str = ""
    body: bytes = b""
    promised_bytes: int | None = None
    status: int = 200
    requests: list[str] = field(default_factory=list)

    def archive(self) -> Archive:
        return Archive(self.url, hashlib.md5(self.body).hexdigest(), FOLDER)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *arguments: object) -> None:
        self.site = site
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.site.requests.append(self.path)
        self.send_response(self.site.status)
        self.send_header("Content-Length", str(self.site.promised_bytes or len(self.site.body)))
        self.end_headers()
        self.wfile.write(self.site.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
        """Keep the test's output clean."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site(body=tarball({f"{FOLDER}/train.bin": record(3) * 2, f"{FOLDER}/test.bin": record(5)}))
    server = HTTPServer(("127.0.0.1", 0), partial(Handler, site))
    site.url = f"http://127.0.0.1:{server.server_port}/archive.tar.gz"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def record(label: int) -> bytes:
    return bytes([0, label]) + bytes(range(256)) * 12


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def names_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_fetch_leaves_the_files_and_nothing_else(site: Site, tmp_path: Path) -> None:
    folder = fetch(site.archive(), FILES, tmp_path / "cache")
    assert folder == tmp_path / "cache" / FOLDER
    assert (folder / "test.bin").read_bytes() == record(5)
    assert names_under(tmp_path / "cache") == [FOLDER, f"{FOLDER}/test.bin", f"{FOLDER}/train.bin"]


def test_a_data_set_is_downloaded_once_and_then_read_from_the_cache(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)
    version: CifarVersion = replace(CIFAR100, archive=site.archive())
    for _ in range(2):
        dataset = load_cifar(version, None)
        assert (dataset.train.y.tolist(), dataset.test.y.tolist()) == ([3, 3], [5])
    assert site.requests == ["/archive.tar.gz"]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    archive = replace(site.archive(), md5="0" * 32)
    with pytest.raises(DataError, match=r"0{32}.*try again"):
        fetch(archive, FILES, tmp_path)
    assert names_under(tmp_path) == []


def test_a_transfer_that_breaks_off_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.promised_bytes = len(site.body) + 1000
    archive = replace(site.archive(), md5="0" * 32)
    with pytest.raises((OSError, DataError)):
        fetch(archive, FILES, tmp_path)
    assert names_under(tmp_path) == []


@pytest.mark.parametrize("name", [f"../{FOLDER}/train.bin", f"/{FOLDER}/train.bin", f"{FOLDER}/../train.bin"])
def test_members_that_point_outside_are_never_written(site: Site, tmp_path: Path, name: str) -> None:
    site.body = tarball({name: record(3), f"{FOLDER}/test.bin": record(5)})
    with pytest.raises(DataError, match="does not hold"):
        fetch(site.archive(), FILES, tmp_path / "cache")
    assert names_under(tmp_path) == ["cache"]


def test_a_link_in_place_of_a_file_is_refused(site: Site, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        link = tarfile.TarInfo(f"{FOLDER}/train.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    site.body = buffer.getvalue()
    with pytest.raises(DataError, match=r"train\.bin"):
        fetch(site.archive(), FILES, tmp_path)
    assert names_under(tmp_path) == []


def test_what_is_no_archive_is_refused(site: Site, tmp_path: Path) -> None:
    site.body = b"<html>please log in to this hotel's network</html>"
    with pytest.raises(DataError, match="does not hold"):
        fetch(site.archive(), FILES, tmp_path)


def test_a_folder_that_another_process_finished_first_is_used(site: Site, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "train.bin").write_bytes(b"theirs")
    folder = fetch(site.archive(), FILES, tmp_path)
    assert (folder / "train.bin").read_bytes() == b"theirs"
    assert names_under(tmp_path) == [FOLDER, f"{FOLDER}/train.bin"]


def test_a_server_error_becomes_a_sentence_with_the_address(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)
    site.status = 503
    with pytest.raises(DataError, match=rf"{site.url} could not be fetched .*503"):
        load_cifar(replace(CIFAR100, archive=site.archive()), None)


def test_a_server_that_stays_silent_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:  # listens, and never accepts
        archive = Archive(f"http://127.0.0.1:{silent.server_port}/", "0" * 32, FOLDER)
        with pytest.raises(OSError, match="timed out"):
            fetch(archive, FILES, tmp_path, timeout_s=0.2)
