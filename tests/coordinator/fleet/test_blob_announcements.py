"""What the coordinator announces with a web store: to devices that know of it, and to older ones."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.scripted_fleet import PATIENCE_S, TOPICS, Fleet, retained_below
from fixtures.web_server import Nginx
from msgspec import UNSET

from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.commands.devices_view import look_at_devices
from sparsyedge.edge.compatibility import FIRST, OURS
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.protocol.messages import Accepted, RoundTask
from sparsyedge.edge.protocol.store_download import download
from sparsyedge.edge.tensors import model_id

pytestmark = pytest.mark.mosquitto


def table(nginx: Nginx, *, fallback: bool = True) -> BlobsConfig:
    return BlobsConfig(url=nginx.url, put=str(nginx.root), fallback=fallback)


def names(nginx: Nginx) -> set[str]:
    return {path.name for path in nginx.root.rglob("*") if path.is_file()}


def needed(fleet: Fleet, task: RoundTask) -> set[str]:
    return {task.manifest.sha256, *(file.sha256 for file in fleet.artifacts.manifest.files.values())}


def test_the_server_has_what_the_round_needs_and_the_broker_has_it_for_older_devices(
    fleet: Fleet, nginx: Nginx, tmp_path: Path
) -> None:
    run = fleet.start(cohort_size=1, blobs=table(nginx))
    (older,) = fleet.join("d1")
    first = older.until_round(1)
    assert names(nginx) == needed(fleet, first)
    assert isinstance(older.deliver(first), Accepted)
    second = older.until_round(2)
    assert isinstance(second.blobs, str)
    assert second.needs is UNSET
    deltas = {delta.model.sha256 for delta in second.deltas}
    older.until(lambda: names(nginx) == needed(fleet, second) | deltas | {second.model.sha256})
    frame = download(second.blobs, second.model, tmp_path / "parts")
    assert len(frame) == second.model.bytes
    assert model_id(older.download(second)) == second.model_id
    assert isinstance(older.deliver(second), Accepted)
    older.until(lambda: older.task is not None and older.task.state == "finished")
    last = older.task
    assert last is not None
    assert run.result().run.state == "finished"
    # What a device needs to predict stays for those that come later.
    kept = {last.manifest.sha256, last.model.sha256, *(delta.model.sha256 for delta in last.deltas)}
    assert last.model_round == 2
    assert names(nginx) == kept | {fleet.artifacts.manifest.files["inference"].sha256}
    assert (fleet.config.run_path / "blobs.json").exists()


def test_without_a_fallback_the_broker_has_no_chunks_and_an_older_device_is_to_be_upgraded(
    fleet: Fleet, nginx: Nginx
) -> None:
    run = fleet.start(cohort_size=1, rounds=1, blobs=table(nginx, fallback=False))
    (older,) = fleet.join("d1")
    older.speaks = FIRST
    older.say_hello()
    until_s, reason = time.monotonic() + PATIENCE_S, ""
    while not reason:
        assert time.monotonic() < until_s
        try:
            with closing(fleet.store()) as store:
                reason = next((view.member.unfit for view in look_at_devices(store)[0] if view.member.unfit), "")
        except RunError:  # the run is only being set up
            continue
    assert "upgrade sparsyedge on d1" in reason
    assert "http-blobs" in reason
    (current,) = fleet.join("d2")
    current.speaks = OURS
    current.say_hello()
    task = current.until_round(1)
    assert task.needs == ("http-blobs",)
    assert retained_below(fleet.port, f"{TOPICS.root}/blob/#") == []
    assert isinstance(current.deliver(task), Accepted)
    assert run.result().run.state == "finished"


def test_a_store_that_breaks_in_mid_run_is_left_out_of_the_next_task(
    fleet: Fleet, nginx: Nginx, caplog: pytest.LogCaptureFixture
) -> None:
    run = fleet.start(cohort_size=1, blobs=table(nginx))
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    (folder,) = nginx.root.iterdir()
    folder.rename(nginx.root / "moved")
    folder.write_bytes(b"in the way")
    device.deliver(task)
    second = device.until_round(2)
    assert second.blobs is UNSET
    assert model_id(device.download(second)) == second.model_id
    device.deliver(second)
    assert run.result().run.state == "finished"
    assert caplog.text.count("devices fetch from the broker until that works again") == 1


def test_a_place_that_takes_nothing_is_said_before_the_run_has_a_folder(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.start(blobs=BlobsConfig(url="http://127.0.0.1:1", put=str(tmp_path / "absent")))
    with pytest.raises(ConfigError, match="which is not a folder"):
        run.result()
    assert not fleet.config.run_path.exists()
