"""A run's blobs in a bucket of a local S3-like server (moto): put, fetched as devices do, removed (`make test-s3`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.broker import START_S
from fixtures.web_server import unused_port

from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.fleet.blob_store import BlobStore, probe
from sparsyedge.edge.errors import ConfigError, LinkError
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.store_download import download

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 30_000
READ_BY_ALL = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::fleet/*"}],
}


def put(url: str, content: bytes = b"") -> None:
    # Without a type, urllib says that the content is a form.
    headers = {"Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, content, headers, method="PUT"), timeout=START_S):
        pass


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server with a bucket `fleet` that anybody may read from."""
    binary = os.environ.get("SPARSYEDGE_MOTO")
    if not binary:
        pytest.skip("no S3-like server named; run: make test-s3")
    port = unused_port()
    url = f"http://127.0.0.1:{port}"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([binary, "-H", "127.0.0.1", "-p", str(port)], stdout=quiet, stderr=quiet)
    try:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                break
            except OSError:
                time.sleep(0.1)
        put(f"{url}/fleet")
        put(f"{url}/fleet?policy", json.dumps(READ_BY_ALL).encode())
        access = {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}
        for key, value in access.items():
            monkeypatch.setenv(f"AWS_{key}", value)
        yield url
    finally:
        process.terminate()
        process.wait(START_S)


def test_blobs_are_put_in_a_bucket_fetched_by_range_and_removed(
    s3: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BlobsConfig(url=f"{s3}/fleet/models", put="s3://fleet/models")
    probe(config)
    assert caplog.text == ""
    store = BlobStore(config, run="demo", run_dir=tmp_path)
    blob = blob_of(CONTENT)
    store.offer(blob, lambda: CONTENT)
    assert store.flush()
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / blob.sha256).write_bytes(CONTENT[:5_000_000])
    counted: list[int] = []
    assert download(store.url, blob, parts, count=counted.append) == CONTENT
    assert sum(counted) == blob.bytes - 5_000_000, "the rest came by range"
    store.keep_only(set())
    with pytest.raises(LinkError, match="it answers 40"):
        download(store.url, blob, parts)


def test_a_bucket_that_does_not_exist_is_one_sentence(s3: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot put anything in s3://absent/models: .*404.*give the") as caught:
        probe(BlobsConfig(url=f"{s3}/absent/models", put="s3://absent/models"))
    assert str(caught.value).isprintable()
