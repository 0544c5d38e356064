"""A whole run over a real broker, with devices that answer from a table instead of training."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.broker import Broker
from fixtures.dense_way import average
from fixtures.scripted_fleet import PATIENCE_S, TOPICS, Fleet, answer, blobs_left, result_blobs, retained_below

from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.coordinator.fleet import leader
from sparsyedge.coordinator.fleet.lock import LOCK_NAME
from sparsyedge.coordinator.record import store_reader
from sparsyedge.coordinator.record.live import LIVE_NAME, LiveReader
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import STORE_NAME
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.errors import LinkError, RunError, TrainingError
from sparsyedge.edge.inference.description import read_description
from sparsyedge.edge.model.artifacts import MANIFEST_NAME
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Accepted, DeviceStatus, Refused, encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.frame import decode_frame

pytestmark = pytest.mark.mosquitto


def test_a_run_ends_in_the_mean_of_what_its_devices_sent(fleet: Fleet) -> None:
    run = fleet.start(aggregation=AggregationConfig(rule="mean", clip=1000.0))
    devices = fleet.join("d3", "d1", "d2")
    for number in (1, 2):
        tasks = [device.until_round(number) for device in devices]
        assert tasks[0].cohort == ("d1", "d2", "d3")
        if number == 2:
            assert model_id(devices[0].download(tasks[0])) == tasks[0].model_id
        for device, task in zip(devices, tasks, strict=True):
            assert isinstance(device.deliver(task), Accepted)
    summary = run.result()
    expected = average((10 * int(name[-1]), answer(name, 2, fleet.initial)) for name in ("d1", "d2", "d3"))
    assert summary.run.state == "finished"
    assert summary.run.model_id == summary.rounds[-1].model_id == model_id(expected)
    assert summary.rounds[-1].test_accuracy == pytest.approx(float(expected["fc.bias"][0]))
    run_dir = fleet.config.run_path
    for name in ("model.onnx", "model_float.onnx"):
        described = read_description(run_dir / name)
        assert (described.run, described.round) == (summary.run.name, 2)
        assert (described.accuracy, described.sparsity) == (
            summary.rounds[-1].test_accuracy,
            summary.rounds[-1].global_sparsity,
        )
        assert described.class_names == ("class 0", "class 1", "class 2", "class 3")
    assert summary.run.model_sha256 == sha256_file(run_dir / "model.onnx")
    shapes = fleet.artifacts.manifest.shapes
    assert model_id(decode_frame((run_dir / "model.frame").read_bytes(), shapes).state) == model_id(expected)
    assert {path.name for path in run_dir.iterdir()} == {
        STORE_NAME,
        LOCK_NAME,
        MANIFEST_NAME,
        "live.sqlite",
        "coordinator.log",
        "model.onnx",
        "model_float.onnx",
        "model.frame",
        "masks",
        "models",
        "updates",
    }
    assert list((run_dir / "updates").iterdir()) == []


def test_the_store_has_what_each_device_spent(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=2)
    sizes = []
    for device in fleet.join("d1", "d2"):
        task = device.until_round(1)
        sizes.append(len(device.frame_of(task)))
        device.deliver(task)
    summary = run.result()
    assert [device.id for device in summary.devices] == ["d1", "d2"]
    assert summary.devices[0].phases == {"train": PhaseCost(1.0, 2.0), "upload": PhaseCost(0.25, None)}
    assert summary.devices[0].pid == 4711
    assert (summary.rounds[0].bytes_up, summary.rounds[0].bytes_down) == (sum(sizes), 2000)


def test_the_order_of_arrival_does_not_change_the_model(fleet: Fleet, tmp_path: Path) -> None:
    models = set()
    for order in (("d1", "d2", "d3"), ("d3", "d1", "d2")):
        run = fleet.start(rounds=1, run_dir=str(tmp_path / "-".join(order)))
        by_name = {device.name: device for device in fleet.devices or fleet.join("d1", "d2", "d3")}
        for name in order:
            by_name[name].deliver(by_name[name].until_round(1))
        models.add(run.result().run.model_sha256)
        for device in fleet.devices:
            device.task = None
    assert len(models) == 1


def test_nothing_but_the_last_task_and_its_model_are_left_on_the_broker(fleet: Fleet) -> None:
    run = fleet.start()
    devices = fleet.join("d1", "d2", "d3")
    kept = []
    for number in (1, 2):
        tasks = [device.until_round(number) for device in devices]
        kept.append(retained_below(fleet.port, f"{TOPICS.root}/blob/#"))
        for device, task in zip(devices, tasks, strict=True):
            device.deliver(task)
    run.result()
    model = TOPICS.chunk(tasks[0].model.sha256, 0)
    # Six small files, one of two chunks, and the manifest; from round 2 on also the model.
    assert [len(topics) for topics in kept] == [9, 10]
    assert model in kept[1]
    assert retained_below(fleet.port, TOPICS.round) == [TOPICS.round]
    devices[0].until(lambda: devices[0].task is not None and devices[0].task.state == "finished")
    assert devices[0].task is not None
    assert blobs_left(fleet.port) == result_blobs(fleet.artifacts, devices[0].task)


def test_round_1_is_not_published_since_devices_have_it_in_the_checkpoint(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    assert task.model_id == fleet.artifacts.manifest.initial_model
    assert retained_below(fleet.port, TOPICS.chunk(task.model.sha256, "+")) == []
    run.coordinator.interrupt()
    run.result()


def present_sentence(fleet: Fleet) -> str:
    """What the run says that it waits for."""
    reader = LiveReader.open(fleet.config.run_path)
    if reader is None:
        return ""
    with closing(reader):
        present = reader.present()
    return present.sentence if present else ""


def test_a_stop_request_is_obeyed_after_the_open_round(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "TICK_S", 0.05)
    run = fleet.start(rounds=50, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        store.request_stop()
    until_s = time.monotonic() + PATIENCE_S
    while "then the run stops" not in present_sentence(fleet):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    device.deliver(task)
    summary = run.result()
    assert (summary.run.state, len(summary.rounds)) == ("stopped", 1)
    assert (fleet.config.run_path / "model.onnx").is_file()


def test_a_run_without_enough_updates_fails_with_a_sentence(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "TICK_S", 0.1)
    run = fleet.start(cohort_size=2, deadline_s=0.3)
    first, _ = fleet.join("d1", "d2")
    first.until_round(1)
    with pytest.raises(RunError, match="round 1 of run r1 has 0 of 2 updates that it needs, after 4 deadlines"):
        run.result()
    with closing(fleet.store()) as store:
        assert store.run().state == "failed"
        assert "has 0 of 2 updates" in store.run().reason
    first.until(lambda: first.task is not None and first.task.state == "finished")


def test_a_device_that_dies_in_mid_round_is_waited_for_until_the_deadline(fleet: Fleet) -> None:
    run = fleet.start(rounds=2, cohort_size=2, min_updates=1, deadline_s=2.0)
    living, dying = fleet.join("d1", "d2")
    task = dying.until_round(1)
    living.deliver(living.until_round(1))
    dying.link.publish(TOPICS.status("d2"), encode(DeviceStatus(state="offline", boot_id="b")), retain=True)
    second = living.until_round(2)
    assert second.cohort == ("d1",)
    late = dying.ask(dying.offer_of(task, dying.frame_of(task)))
    assert isinstance(late, Refused)
    assert late.reason == "round 1 is not open: round 2 is"
    living.deliver(second)
    summary = run.result()
    assert [record.updates for record in summary.rounds] == [1, 1]
    assert summary.rounds[0].refused == 1


def test_without_a_broker_no_run_directory_is_left_behind(
    fleet: Fleet, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link.open, "__defaults__", (0.5,))
    with pytest.raises(LinkError, match="cannot connect to the MQTT broker"):
        fleet.start(broker=BrokerConfig(port=1)).result()
    assert not fleet.config.run_path.exists()


def test_an_old_task_does_not_send_devices_to_work_while_the_run_waits(fleet: Fleet) -> None:
    (device,) = fleet.join("d1")
    device.link.publish(TOPICS.round, b"left by somebody", retain=True)
    run = fleet.start(cohort_size=5)
    until_s = time.monotonic() + PATIENCE_S
    while retained_below(fleet.port, TOPICS.round) and time.monotonic() < until_s:
        pass
    assert retained_below(fleet.port, TOPICS.round) == []
    run.coordinator.interrupt()
    assert run.result().run.state == "stopped"


def test_a_broker_that_forgot_everything_is_told_again(fleet: Fleet, broker: Broker) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.deliver(device.until_round(1))
    device.until_round(2)
    broker.stop()
    device.task = None
    broker.start()
    task = device.until_round(2)
    assert model_id(device.download(task)) == task.model_id
    assert isinstance(device.deliver(task), Accepted)
    assert run.result().run.state == "finished"


def test_a_fault_of_the_evaluation_ends_the_run_for_the_devices_too(fleet: Fleet) -> None:
    def evaluate(state: State) -> Evaluation:
        raise TrainingError("evaluation failed")

    run = fleet.start(evaluate=evaluate, cohort_size=1)
    (device,) = fleet.join("d1")
    device.deliver(device.until_round(1))
    with pytest.raises(TrainingError):
        run.result()
    device.until(lambda: device.task is not None and device.task.state == "finished")
    with closing(fleet.store()) as store:
        assert (store.run().state, store.run().reason) == ("failed", "evaluation failed")


def test_a_paused_run_opens_no_round_until_it_is_resumed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "TICK_S", 0.1)
    run = fleet.start(rounds=2, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        store.request_pause()
        until_s = time.monotonic() + PATIENCE_S
        while store.run().state != "paused" and time.monotonic() < until_s:
            time.sleep(0.05)
        assert store.run().state == "paused"
        device.deliver(task)
        device.until(lambda: len(store.rounds()) == 1)
        assert store.progress().open is None
        store.request_resume()
    device.deliver(device.until_round(2))
    assert run.result().run.state == "finished"


def test_a_run_waits_for_whoever_has_locked_its_store(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_reader, "BUSY_TIMEOUT_S", 0.2)
    run = fleet.start(rounds=1)
    devices = fleet.join("d1", "d2", "d3")
    tasks = [device.until_round(1) for device in devices]
    other = sqlite3.connect(fleet.config.run_path / STORE_NAME, isolation_level=None, check_same_thread=False)
    with closing(other):
        other.execute("BEGIN IMMEDIATE")
        said: list[str] = []

        def release_once_it_is_said() -> None:
            until_s = time.monotonic() + 30.0
            while not said and time.monotonic() < until_s:
                with closing(LiveReader(fleet.config.run_path / LIVE_NAME)) as reader:
                    present = reader.present()
                said.extend([present.sentence] if present and "has locked" in present.sentence else [])
            other.rollback()

        release = threading.Thread(target=release_once_it_is_said)
        release.start()
        for device, task in zip(devices, tasks, strict=True):
            assert isinstance(device.deliver(task), Accepted)
        release.join()
    assert run.result().run.state == "finished"
    assert "run.sqlite has been locked" in caplog.text
    assert said == [f"the coordinator waits for {fleet.config.run_path / STORE_NAME}, which another process has locked"]
