"""What a run puts on a web server, what it removes again, and what it never touches."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from fixtures.web_server import Nginx, unused_port

from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.fleet.blob_shelves import BucketShelf, ShelfError, open_shelf
from sparsyedge.coordinator.fleet.blob_store import LEDGER_NAME, BlobStore, probe
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.storage import private_files

CONTENTS = {blob_of(content).sha256: content for content in (b"one", b"two", b"three")}
ONE, TWO, THREE = CONTENTS


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def config_for(served: Path, *, fallback: bool = True) -> BlobsConfig:
    return BlobsConfig(url="http://127.0.0.1:1/fleet/", put=str(served), fallback=fallback)


def store_for(served: Path, run_dir: Path, *, fallback: bool = True) -> BlobStore:
    return BlobStore(config_for(served, fallback=fallback), run="demo", run_dir=run_dir)


def offer(store: BlobStore, *names: str) -> None:
    for name in names:
        store.offer(blob_of(CONTENTS[name]), lambda name=name: CONTENTS[name])  # type: ignore[misc]


def files(served: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in served.rglob("*") if path.is_file()}


def test_blobs_lie_under_their_hash_in_the_runs_own_folder_where_a_web_server_can_read_them(
    served: Path, run_dir: Path
) -> None:
    store = store_for(served, run_dir)
    offer(store, ONE, TWO)
    with private_files():
        assert store.flush()
    (folder,) = served.iterdir()
    assert store.url == f"http://127.0.0.1:1/fleet/{folder.name}"
    assert folder.name.startswith("demo-")
    assert files(served) == {ONE: b"one", TWO: b"two"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / ONE).stat().st_mode) == 0o644


def test_only_what_the_run_has_put_is_removed(served: Path, run_dir: Path) -> None:
    store = store_for(served, run_dir)
    offer(store, ONE, TWO)
    store.flush()
    (folder,) = served.iterdir()
    (served / "index.html").write_bytes(b"theirs")
    (folder / THREE).write_bytes(b"theirs, too")
    offer(store, TWO)
    store.keep_only({TWO})
    assert files(served) == {TWO: b"two", "index.html": b"theirs", THREE: b"theirs, too"}
    store.keep_only(set())
    assert files(served) == {"index.html": b"theirs", THREE: b"theirs, too"}
    (folder / THREE).unlink()


def test_nothing_is_left_at_the_end_of_a_run(served: Path, run_dir: Path) -> None:
    store = store_for(served, run_dir)
    offer(store, ONE, TWO)
    store.flush()
    store.keep_only(set())
    assert list(served.iterdir()) == []
    assert list(run_dir.iterdir()) == []


def test_a_resumed_run_removes_what_the_killed_one_left_and_repairs_what_was_damaged(
    served: Path, run_dir: Path
) -> None:
    killed = store_for(served, run_dir)
    offer(killed, ONE, TWO)
    killed.flush()
    (served / killed.url.rsplit("/", 1)[1] / TWO).write_bytes(b"no")
    resumed = store_for(served, run_dir)
    assert resumed.url == killed.url
    offer(resumed, TWO, THREE)
    resumed.flush()
    resumed.keep_only({TWO, THREE})
    assert files(served) == {TWO: b"two", THREE: b"three"}


def test_two_runs_with_the_same_blobs_do_not_remove_each_others(served: Path, tmp_path: Path) -> None:
    stores = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        stores.append(store_for(served, tmp_path / name))
        offer(stores[-1], ONE)
        stores[-1].flush()
    stores[0].keep_only(set())
    assert files(served) == {ONE: b"one"}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"put":1}', b"\xff"])
def test_a_damaged_list_is_said_and_nothing_is_removed(
    served: Path, run_dir: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (run_dir / LEDGER_NAME).write_bytes(content)
    (served / ONE).write_bytes(b"theirs")
    store_for(served, run_dir).keep_only(set())
    assert "is damaged" in caplog.text
    assert files(served) == {ONE: b"theirs"}


def test_another_place_is_said_and_the_old_one_is_left_alone(
    served: Path, run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_for(served, run_dir)
    offer(store, ONE)
    store.flush()
    other = tmp_path / "other"
    other.mkdir()
    store_for(other, run_dir).keep_only(set())
    assert f"what this run has put in {served}/demo-" in caplog.text
    assert files(served) == {ONE: b"one"}


@pytest.fixture
def broken(served: Path, run_dir: Path) -> BlobStore:
    """A store that cannot take anything, since a file stands where its folder should be."""
    store = store_for(served, run_dir)
    (served / store.url.rsplit("/", 1)[1]).write_bytes(b"in the way")
    return store


def test_a_store_that_fails_is_said_once_and_used_again_when_it_works(
    broken: BlobStore, served: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offer(broken, ONE)
    assert not broken.flush()
    assert not broken.flush()
    assert caplog.text.count("devices fetch from the broker until that works again") == 1
    assert str(served) in caplog.text
    (served / broken.url.rsplit("/", 1)[1]).unlink()
    assert broken.flush()
    assert files(served) == {ONE: b"one"}


def test_a_store_that_fails_ends_a_run_without_a_fallback(served: Path, run_dir: Path) -> None:
    store = store_for(served, run_dir, fallback=False)
    (served / store.url.rsplit("/", 1)[1]).write_bytes(b"in the way")
    offer(store, ONE)
    with pytest.raises(RunError, match=r"cannot put a blob in .*; repair the store and start again"):
        store.flush()


# ---- at the start of a run -------------------------------------------------------------------------------------------


def test_a_probe_that_can_be_fetched_says_nothing_and_leaves_nothing(
    nginx: Nginx, caplog: pytest.LogCaptureFixture
) -> None:
    probe(BlobsConfig(url=f"{nginx.url}/", put=str(nginx.root)))
    assert caplog.text == ""
    assert list(nginx.root.iterdir()) == []
    assert [request.status for request in nginx.requests()] == [200]


def test_a_folder_that_is_not_the_one_that_is_served_is_a_warning(
    nginx: Nginx, served: Path, caplog: pytest.LogCaptureFixture
) -> None:
    probe(BlobsConfig(url=nginx.url, put=str(served)))
    assert "cannot be fetched at `blobs.url` from here: " in caplog.text
    assert "it answers 404" in caplog.text
    assert list(served.iterdir()) == []


def test_a_folder_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`blobs.put` has value '.*absent', which is not a folder; make it"):
        probe(config_for(tmp_path / "absent"))


def test_a_folder_that_cannot_be_written_is_one_sentence() -> None:
    # Not even root can make a folder there.
    with pytest.raises(ConfigError, match=r"cannot put anything in the folder /proc: .*; give the coordinator access"):
        probe(config_for(Path("/proc")))


# ---- buckets ---------------------------------------------------------------------------------------------------------


def test_a_bucket_without_obstore_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"obstore is not installed; .*pip install '\.\[store\]'"):
        open_shelf("s3://bucket/prefix")


def test_a_bucket_takes_and_gives_up_blobs_by_name(tmp_path: Path) -> None:
    store = pytest.importorskip("obstore.store").LocalStore(tmp_path)
    shelf = BucketShelf("s3://bucket/prefix", store)
    shelf.put("demo-1", ONE, b"one")
    shelf.put("demo-1", ONE, b"one")
    shelf.put("demo-1", TWO, b"two")
    assert files(tmp_path) == {ONE: b"one", TWO: b"two"}
    shelf.remove("demo-1", ONE)
    shelf.remove("demo-1", ONE)
    shelf.close("demo-1")
    assert files(tmp_path) == {TWO: b"two"}


def test_a_bucket_that_nobody_serves_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(ShelfError, match="s3://bucket/prefix: ") as caught:
        open_shelf("s3://bucket/prefix").put("demo-1", ONE, b"one")
    assert str(caught.value).isprintable()
    assert "secret" not in str(caught.value)
