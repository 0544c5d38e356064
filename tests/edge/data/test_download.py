from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge.data.cifar import CIFAR100, CifarVersion
from sparsyedge.edge.data.download import Archive, fetch
from sparsyedge.edge.data.loaders import load_cifar, load_speech
from sparsyedge.edge.data.speech import SPEECH_ARCHIVE
from sparsyedge.edge.errors import DataError

FILES = ("train.bin", "test.bin")
FOLDER = "cifar-100-binary"


@dataclass
class Site:
    """The loopback server's response, and the requests it got."""

    url: str = ""
    body: bytes = b""
    promised_bytes: int | None = None
    repeats: int = 1
    pause_s: float = 0
    """Pause between bytes; 0 sends all at once."""
    status: int = 200
    requests: list[str] = field(default_factory=list)

    def archive(self) -> Archive:
        checksum = f"md5:{hashlib.md5(self.body).hexdigest()}"
        return Archive(self.url, checksum, FOLDER, size_bytes=len(self.body), unpacked_bytes=10_000)

    def speech_archive(self) -> Archive:
        checksum = f"sha256:{hashlib.sha256(self.body).hexdigest()}"
        return replace(SPEECH_ARCHIVE, url=self.url, checksum=checksum, size_bytes=len(self.body), unpacked_bytes=0)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *arguments: object) -> None:
        self.site = site
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.site.requests.append(self.path)
        self.send_response(self.site.status)
        length = len(self.site.body) * self.site.repeats
        self.send_header("Content-Length", str(self.site.promised_bytes or length))
        self.end_headers()
        # A client that has seen enough hangs up.
        with suppress(ConnectionError):
            self._send_body()

    def _send_body(self) -> None:
        if self.site.pause_s:
            for byte in self.site.body:
                self.wfile.write(bytes([byte]))
                time.sleep(self.site.pause_s)
        else:
            for _ in range(self.site.repeats):
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


def tarball(members: dict[str, bytes], *, link: tuple[str, str] | None = None) -> bytes:
    """An archive of these files, after a link (its name, and what it points to) where one is given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        if link is not None:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            tar.addfile(info)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def names_under(folder: Path) -> list[str]:
    """All that is there but the lock, an empty file that stays."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock")


def clip(value: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.full(16_000, value, dtype="<i2").tobytes())
    return buffer.getvalue()


def speech_tarball() -> bytes:
    """Two words as in the official archive: no folder around them, every name with a dot before it."""
    clips = {f"./{word}/{number}.wav": clip(100) for word in ("no", "yes") for number in range(3)}
    lists = {"./testing_list.txt": b"no/2.wav\nyes/2.wav\n", "./validation_list.txt": b"no/1.wav\n"}
    return tarball(clips | lists | {"./_background_noise_/hum.wav": clip(0)})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a cache, and no data folder in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARSYEDGE_DATA", raising=False)
    return tmp_path / "home"


def test_fetch_leaves_the_files_and_nothing_else(site: Site, tmp_path: Path) -> None:
    folder = fetch(site.archive(), FILES, tmp_path / "cache")
    assert folder == tmp_path / "cache" / FOLDER
    assert (folder / "test.bin").read_bytes() == record(5)
    assert names_under(tmp_path / "cache") == [FOLDER, f"{FOLDER}/test.bin", f"{FOLDER}/train.bin"]


@pytest.mark.usefixtures("home")
def test_a_data_set_is_downloaded_once_and_then_read_from_the_cache(site: Site) -> None:
    version: CifarVersion = replace(CIFAR100, archive=site.archive())
    for _ in range(2):
        dataset = load_cifar(version, None)
        assert (dataset.train.y.tolist(), dataset.test.y.tolist()) == ([3, 3], [5])
    assert site.requests == ["/archive.tar.gz"]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    archive = replace(site.archive(), checksum="md5:" + "0" * 32)
    with pytest.raises(DataError, match=r"0{32}.*try again"):
        fetch(archive, FILES, tmp_path)
    assert names_under(tmp_path) == []


def test_a_transfer_that_breaks_off_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.promised_bytes = len(site.body) + 1000
    archive = replace(site.archive(), checksum="md5:" + "0" * 32)
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
    site.body = tarball({}, link=(f"{FOLDER}/train.bin", "/etc/passwd"))
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


@pytest.mark.usefixtures("home")
def test_a_server_error_becomes_a_sentence_with_the_address(site: Site) -> None:
    site.status = 503
    with pytest.raises(DataError, match=rf"{site.url} could not be fetched .*503"):
        load_cifar(replace(CIFAR100, archive=site.archive()), None)


def test_a_server_that_stays_silent_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:  # listens, and never accepts
        url = f"http://127.0.0.1:{silent.server_port}/"
        archive = Archive(url, "md5:" + "0" * 32, FOLDER, size_bytes=1, unpacked_bytes=1)
        with pytest.raises(OSError, match="timed out"):
            fetch(archive, FILES, tmp_path, timeout_s=0.2)


def test_a_server_that_only_trickles_is_given_up_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of a second in all, and long enough for each byte on a busy machine.
    monkeypatch.setattr("sparsyedge.edge.data.download._PATIENCE", 0.01)
    site.pause_s = 0.01
    with pytest.raises(TimeoutError, match=r"sent \d+ bytes in the last"):
        fetch(site.archive(), FILES, tmp_path, timeout_s=10)
    assert names_under(tmp_path) == []


def test_an_answer_longer_than_the_archive_is_not_read_to_its_end(site: Site, tmp_path: Path) -> None:
    archive = site.archive()
    site.body, site.repeats = bytes(1 << 20), 64
    with pytest.raises(DataError, match="its publisher gives") as caught:
        fetch(archive, FILES, tmp_path)
    sent = re.search(r"sent (\d+) bytes", str(caught.value))
    assert sent is not None
    assert int(sent[1]) < len(site.body) * site.repeats
    assert names_under(tmp_path) == []


def test_a_disk_without_room_is_told_before_the_download(site: Site, tmp_path: Path) -> None:
    archive = replace(site.archive(), unpacked_bytes=1 << 60)
    with pytest.raises(OSError, match=r"it needs 1,152,921,504,607 MB there, but only [\d,]+ MB are free"):
        fetch(archive, FILES, tmp_path)
    assert site.requests == []


def test_what_a_killed_process_left_is_removed(site: Site, tmp_path: Path) -> None:
    remains = tmp_path / f".{FOLDER}.part" / FOLDER
    remains.mkdir(parents=True)
    (remains / "train.bin").write_bytes(b"half")
    fetch(site.archive(), FILES, tmp_path)
    assert names_under(tmp_path) == [FOLDER, f"{FOLDER}/test.bin", f"{FOLDER}/train.bin"]


def test_two_that_want_it_at_once_download_it_once(site: Site, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetch, site.archive(), FILES, tmp_path) for _ in range(2)]
        assert [each.result(timeout=300) for each in both] == [tmp_path / FOLDER] * 2
    assert site.requests == ["/archive.tar.gz"]


def test_how_large_it_is_is_said_before_it_is_fetched(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site.status = 503
    archive = replace(site.archive(), size_bytes=2_428_923_189)
    with pytest.raises(OSError, match="503"):
        fetch(archive, FILES, tmp_path)
    assert f"downloading {site.url} (2,429 MB, " in caplog.text


# ---- Speech Commands: thousands of files, and no folder around them --------------------------------------------------


def test_speech_is_downloaded_once_and_then_read_from_the_cache(site: Site, home: Path) -> None:
    site.body = speech_tarball()
    for _ in range(2):
        dataset = load_speech("speech_commands", None, archive=site.speech_archive())
        assert (dataset.train.y.tolist(), dataset.test.y.tolist(), dataset.classes) == ([0, 1, 1], [0, 1], 2)
    assert site.requests == ["/archive.tar.gz"]
    assert names_under(home / ".cache")[:2] == ["sparsyedge", "sparsyedge/speech_commands_v0.02"]


@pytest.mark.usefixtures("home")
def test_a_subset_of_speech_goes_before_a_download(site: Site, tmp_path: Path) -> None:
    x = np.zeros((4, 16_000), dtype=np.int16)
    np.savez(tmp_path / "speech_small.npz", x=x, y=[0, 1, 0, 1], names=["no", "yes"], split=[0, 0, 2, 2])
    dataset = load_speech("speech_commands", tmp_path, archive=site.speech_archive())
    assert len(dataset.train) == 2
    assert site.requests == []


def test_speech_with_a_wrong_checksum_is_refused_and_leaves_nothing(site: Site, home: Path) -> None:
    site.body = speech_tarball()
    archive = replace(site.speech_archive(), checksum=SPEECH_ARCHIVE.checksum)
    with pytest.raises(DataError, match=r"sha256 .*its publisher gives .*af14739e"):
        load_speech("speech_commands", None, archive=archive)
    assert names_under(home / ".cache") == ["sparsyedge"]


@pytest.mark.parametrize("name", ["../evil.wav", "/evil.wav", "./no/../../evil.wav"])
def test_a_whole_archive_with_a_member_that_points_outside_is_refused(site: Site, tmp_path: Path, name: str) -> None:
    site.body = tarball({"./no/0.wav": clip(1), name: clip(1)})
    with pytest.raises(DataError, match="leads out of its folder"):
        fetch(site.speech_archive(), None, tmp_path / "cache")
    assert names_under(tmp_path) == ["cache"]


def test_no_file_of_a_whole_archive_is_written_through_a_link(site: Site, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    site.body = tarball({"./no/evil.wav": clip(1)}, link=("./no", str(tmp_path / "outside")))
    with pytest.raises(DataError, match=r"no in http.* is not a regular file"):
        fetch(site.speech_archive(), None, tmp_path / "cache")
    assert names_under(tmp_path) == ["cache", "outside"]


def test_speech_that_is_half_unpacked_is_neither_used_nor_fetched_over(site: Site, home: Path) -> None:
    (home / ".cache" / "sparsyedge" / "speech_commands_v0.02" / "no").mkdir(parents=True)
    with pytest.raises(DataError, match=r"testing_list\.txt is missing .* unpack the archive"):
        load_speech("speech_commands", None, archive=site.speech_archive())
    assert site.requests == []
