"""What the page shows of a run's files, and what it sends when they change."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.page_runs import accept, activity, close_round, names, present, write_live, write_run
from fixtures.page_site import Site

from sparsyedge.coordinator.record.live import LiveRecord
from sparsyedge.coordinator.record.run_log import LOG_NAME
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.web.hub import MAX_WAITING, Hub
from sparsyedge.coordinator.web.log_tail import KEPT_LINES, LogTail
from sparsyedge.coordinator.web.picture import RunPicture


@pytest.fixture
def run_dir(tmp_path: Path, written_run: Path) -> Path:
    shutil.copytree(written_run, tmp_path / "run")
    return tmp_path / "run"


def test_the_first_look_shows_everything(run_dir: Path) -> None:
    with closing(Store.open(run_dir)) as store:
        store.touch()
    with closing(RunPicture(run_dir)) as picture:
        picture.look()
        whole = picture.whole()
    assert [entry["round"] for entry in whole["rounds"]] == [1, 2, 3, 4]
    assert whole["run"]["sentence"] == "round 5 waits for 3 of 6 devices: pi-003, pi-004, pi-005"
    devices = {row["id"]: row for row in whole["devices"]}
    assert {name: row["state"] for name, row in devices.items()} == {
        "pi-000": "online",
        "pi-001": "online",
        "pi-002": "online",
        "pi-003": "training",
        "pi-004": "unfit",
        "pi-005": "offline",
    }
    assert devices["pi-000"]["refused"] == 3
    assert devices["pi-000"]["why"][0].startswith("refused in round 4 (3x in all): round 1 is closed")
    assert whole["layers"]["round"] == 4
    assert len(whole["log"]) == 5


def test_totals_are_those_of_the_devices_command(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture, closing(Store.open(run_dir)) as store:
        picture.look()
        close_next = store.progress().closed_round + 2
        for device in names(6)[3:]:
            accept(store, close_next - 1, device)
        store.commit()
        picture.look()
        shown = {row["id"]: row for row in picture.whole()["devices"]}
        for member in store.members():
            row = shown[member.device]
            assert (row["updates"], row["up"], row["down"]) == (member.updates, member.bytes_up, member.bytes_down)
            assert row["joules"] == pytest.approx(member.joules)
            assert row["seconds"] == pytest.approx(member.seconds)


def test_a_look_without_changes_sends_nothing(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture:
        picture.look()
        assert picture.look() == {}


def test_only_what_changed_is_sent(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture, closing(Store.open(run_dir)) as store:
        picture.look()
        accept(store, 5, "pi-003")
        change = picture.look()
    assert [row["id"] for row in change["devices"]] == ["pi-003"]
    assert change["run"]["accepted"] == 4
    assert "rounds" not in change


def test_a_closed_round_is_sent_once(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", rounds=4, open_next=False)
    with closing(RunPicture(run_dir)) as picture, closing(Store.open(run_dir)) as store:
        picture.look()
        close_round(store, 5, names(6))
        change = picture.look()
        assert [entry["round"] for entry in change["rounds"]] == [5]
        assert change["layers"]["round"] == 5


def test_the_coordinators_own_sentence_and_steps_are_shown(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture:
        picture.look()
        with closing(write_live(run_dir, devices=6, number=5, sentence="round 5 waits for pi-003")) as live:
            change = picture.look()
            assert change["run"]["sentence"] == "round 5 waits for pi-003"
            first = change["devices"][0]
            assert (first["id"], first["phase"], first["steps"]) == ("pi-003", "train", 310)
            live.note(activity("pi-003", number=5, step=200))
            live.flush(present(5, sentence="round 5 waits for pi-003"))
            assert picture.look()["devices"][0]["step"] == 200


def test_a_new_live_record_replaces_the_old_one(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture:
        write_live(run_dir, devices=6, number=5, sentence="first").close()
        picture.look()
        with closing(LiveRecord(run_dir)) as live:
            live.flush(present(5, sentence="second"))
            assert picture.look()["run"]["sentence"] == "second"


def test_a_coordinator_that_is_gone_is_said_to_be(run_dir: Path) -> None:
    now = [0.0]
    with closing(Store.open(run_dir)) as store:
        now[0] = store.run().seen_at
    with closing(RunPicture(run_dir, clock=lambda: now[0])) as picture:
        assert picture.look()["run"]["state"] == "running"
        now[0] += 31.0
        run = picture.look()["run"]
    assert run["state"] == "silent"
    assert "was last heard of at" in run["sentence"]


def test_a_run_that_is_only_being_set_up_is_waited_for(tmp_path: Path) -> None:
    with closing(RunPicture(tmp_path / "run")) as picture:
        assert picture.look()["run"]["state"] == "starting"
        write_run(tmp_path / "run")
        assert picture.look()["run"]["state"] == "running"


def test_a_failed_run_shows_its_reason(run_dir: Path) -> None:
    with closing(Store.open(run_dir)) as store:
        store.end_run("failed", reason="round 5 could not complete")
    with closing(RunPicture(run_dir)) as picture:
        run = picture.look()["run"]
    assert (run["state"], run["actions"]) == ("failed", [])
    assert run["sentence"] == "the run is failed, 4 of 10 rounds closed: round 5 could not complete"


def test_the_log_is_followed_over_a_change_of_files(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    tail = LogTail(path)
    assert tail.grown() == []
    path.write_text("one\ntw")
    assert tail.grown() == ["one"]
    with path.open("a") as file:
        file.write("o\n")
    assert tail.grown() == ["two"]
    path.rename(tmp_path / "coordinator.log.1")
    path.write_text("three\n")
    assert tail.grown() == ["three"]
    assert list(tail.lines) == ["one", "two", "three"]


def test_a_flood_of_lines_is_cut(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    path.write_bytes(b"\x1b[31mred\n" * 100_000)
    tail = LogTail(path)
    assert len(tail.grown()) == KEPT_LINES
    assert tail.lines[0] == "?[31mred"


def test_a_device_has_a_history(open_site: Site) -> None:
    history = open_site.client.get("/api/devices/pi-000").json()
    assert [entry["round"] for entry in history["rounds"]] == [1, 2, 3, 4, 5]
    assert history["rounds"][0]["phases"]["train"][0] > 20
    assert history["refusals"][0]["count"] == 3
    assert open_site.client.get("/api/devices/absent").status_code == 404


def test_layers_are_shown_over_the_rounds(open_site: Site) -> None:
    answer = open_site.client.get("/api/layers").json()
    assert answer["rounds"] == [1, 2, 3, 4]
    assert [layer["name"] for layer in answer["layers"]][:2] == ["stem.weight", "layer1.0.conv1.weight"]
    assert all(len(layer["sparsity"]) == 4 for layer in answer["layers"])


def test_a_stream_ends_when_its_browser_is_no_longer_welcome(run_dir: Path) -> None:
    async def watch() -> list[bytes]:
        hub, welcome = Hub(RunPicture(run_dir)), [True]
        received = []
        try:
            async for message in hub.stream(lambda: welcome[0]):
                received.append(message)
                welcome[0] = False
                with closing(Store.open(run_dir)) as store:
                    accept(store, 5, "pi-003")
        finally:
            await hub.stop()
        return received

    (only,) = asyncio.run(watch())
    assert only.startswith(b"event: whole\n")


def test_a_slow_browser_gets_everything_anew_instead_of_a_growing_queue(run_dir: Path) -> None:
    async def fall_behind() -> bytes:
        hub = Hub(RunPicture(run_dir))
        stream = hub.stream(lambda: True)
        try:
            await anext(stream)
            (client,) = hub._clients
            for number in range(MAX_WAITING + 5):
                client.give(b"change %d" % number)
            assert client.waiting.qsize() == MAX_WAITING
            return await anext(stream)
        finally:
            await stream.aclose()
            await hub.stop()

    assert asyncio.run(fall_behind()).startswith(b"event: whole\n")


def test_an_authority_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", rounds=1, config='{"authority": "absent"}')
    with closing(RunPicture(run_dir)) as picture:
        assert "who is revoked is unknown" in picture.look()["run"]["trouble"]
