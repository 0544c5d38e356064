"""A whole run over a real broker, with devices that answer from a table instead of training."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pytest

from sparsyedge.coordinator import leader
from sparsyedge.coordinator.aggregate import average
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.global_model import Evaluate
from sparsyedge.coordinator.observer import SilentObserver
from sparsyedge.coordinator.records import Evaluation, RunSummary
from sparsyedge.coordinator.service import Coordinator
from sparsyedge.coordinator.store import STORE_NAME, Store
from sparsyedge.coordinator.update_files import UpdateFiles
from sparsyedge.edge.artifacts import Artifacts
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.energy import PhaseCost
from sparsyedge.edge.errors import LinkError, RunError, TrainingError
from sparsyedge.edge.link import Connected, Link, Received
from sparsyedge.edge.messages import (
    Accepted,
    DeviceStatus,
    Grant,
    Offer,
    Refused,
    Reply,
    Report,
    RoundTask,
    Topics,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.prune import prune_global
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.transfer import Assembly, blob_of, chunk_of, indices
from sparsyedge.edge.wire import decode_frame, encode_frame

pytestmark = pytest.mark.mosquitto


class Broker(Protocol):
    """What tests/conftest.py gives."""

    port: int

    def start(self) -> None: ...

    def stop(self) -> None: ...


TOPICS = Topics("lab")
PATIENCE_S = 20.0


def answer(device: str, round_number: int, initial: State) -> State:
    """The update of a device: depends on nothing but its name and the round, and keeps to the budget."""
    generator = np.random.default_rng([round_number, *device.encode()])
    noisy = {
        name: (tensor + generator.random(tensor.shape).astype(np.float32)).astype(np.float32)
        for name, tensor in initial.items()
    }
    return prune_global(noisy, ["fc.weight"], 0.5)


class FakeDevice:
    """Speaks the protocol, one step at a time, as the test asks."""

    def __init__(self, port: int, name: str, initial: State) -> None:
        self.name = name
        self.initial = initial
        self.task: RoundTask | None = None
        self.replies: list[Reply] = []
        self.assembly: Assembly | None = None
        status = encode(DeviceStatus(state="offline", boot_id="b"))
        self.link = Link("127.0.0.1", port, identity=name, will=(TOPICS.status(name), status))
        self.link.open()
        self.link.subscribe(TOPICS.round)
        self.link.subscribe(TOPICS.reply(name))

    def say_hello(self) -> None:
        status = DeviceStatus(state="online", boot_id="b", samples=10)
        self.link.publish(TOPICS.status(self.name), encode(status), retain=True)

    def listen(self, timeout_s: float = 0.05) -> None:
        event = self.link.receive(timeout_s)
        if isinstance(event, Connected):
            self.say_hello()
        elif isinstance(event, Received):
            match TOPICS.parse(event.topic):
                case ("round",):
                    self.task = decode(event.payload, RoundTask) if event.payload else None
                case ("dev", _, "reply"):
                    self.replies.append(decode_reply(event.payload))
                case ("blob", _, index) if self.assembly and event.payload:
                    self.assembly.put(int(index), event.payload)

    def until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"{self.name} waited in vain; last task {self.task}"
            self.listen()

    def until_round(self, number: int) -> RoundTask:
        self.until(lambda: self.task is not None and self.task.round == number and self.task.state == "open")
        assert self.task is not None
        return self.task

    def download(self, task: RoundTask) -> State:
        self.assembly = Assembly(task.model)
        pattern = TOPICS.chunk(task.model.sha256, "+")
        self.link.subscribe(pattern)
        self.until(lambda: self.assembly is not None and self.assembly.complete)
        self.link.unsubscribe(pattern)
        shapes = {name: tensor.shape for name, tensor in self.initial.items()}
        return decode_frame(self.assembly.content(), shapes).state

    def offer_of(self, task: RoundTask, frame: bytes) -> Offer:
        return Offer(
            run=task.run,
            round=task.round,
            base=task.model_id,
            update=blob_of(frame, chunk_bytes=1024),
            samples=10 * int(self.name[-1]),
            report=report_of(task),
        )

    def frame_of(self, task: RoundTask, state: State | None = None) -> bytes:
        state = answer(self.name, task.round, self.initial) if state is None else state
        return encode_frame(
            state, run=task.run, round_number=task.round, base_id=task.model_id, prunable=["fc.weight"]
        ).frame

    def ask(self, offer: Offer) -> Reply:
        """Offer and wait for the next reply, asking again as devices do."""
        self.replies.clear()
        until_s = time.monotonic() + PATIENCE_S
        while not self.replies and time.monotonic() < until_s:
            self.link.publish(TOPICS.offer(self.name), encode(offer))
            again_s = time.monotonic() + 1.0
            while not self.replies and time.monotonic() < again_s:
                self.listen()
        return self.replies.pop(0)

    def deliver(self, task: RoundTask, state: State | None = None) -> Accepted | Refused:
        frame = self.frame_of(task, state)
        offer = self.offer_of(task, frame)
        reply = self.ask(offer)
        while isinstance(reply, Grant):
            for index in indices(reply.missing, offer.update):
                chunk = chunk_of(frame, offer.update, index)
                self.link.publish(TOPICS.upload(self.name, offer.update.sha256, index), chunk)
            self.until(lambda: bool(self.replies))
            reply = self.replies.pop(0)
        if isinstance(reply, Accepted):
            report = msgspec.structs.replace(
                report_of(task), bytes_up=len(frame), phases={"upload": PhaseCost(0.25, None)}
            )
            self.link.publish(TOPICS.report(self.name), encode(report))
        return reply


def report_of(task: RoundTask) -> Report:
    return Report(
        run=task.run,
        round=task.round,
        phases={"train": PhaseCost(1.0, 2.0)},
        energy_source="cpu-model",
        energy_kind="modelled",
        bytes_down=1000,
        bytes_up=0,
        steps=4,
        loss=0.5,
        peak_rss_mb=50.0,
        pid=4711,
    )


class RunThread:
    """A coordinator at work in a thread; `result` waits for its end and gives what it returned or raised."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._outcome: RunSummary | Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self.coordinator.run()
        except Exception as error:
            self._outcome = error

    def result(self) -> RunSummary:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the coordinator did not come to an end"
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


class Fleet:
    """A broker, devices and the makings of a coordinator."""

    def __init__(self, port: int, folder: Path, artifacts: Artifacts, initial: State) -> None:
        self.port = port
        self.artifacts = artifacts
        self.initial = initial
        self.config = RunConfig(
            name="r1",
            artifacts=str(artifacts.directory),
            run_dir=str(folder / "run"),
            dataset="none",
            fleet="lab",
            rounds=2,
            cohort_size=3,
            deadline_s=60.0,
            broker=BrokerConfig(port=port),
        )
        self.devices: list[FakeDevice] = []

    def start(self, *, evaluate: Evaluate | None = None, **changes: object) -> RunThread:
        self.config = msgspec.structs.replace(self.config, **changes)
        coordinator = Coordinator(
            self.config,
            self.artifacts,
            initial=self.initial,
            evaluate=evaluate or (lambda state: Evaluation(float(state["fc.bias"][0]), 1.0)),
            observer=SilentObserver(),
        )
        return RunThread(coordinator)

    def join(self, *names: str) -> list[FakeDevice]:
        joined = [FakeDevice(self.port, name, self.initial) for name in names]
        self.devices += joined
        for device in joined:
            device.listen(1.0)
        return joined

    def store(self) -> Store:
        return Store.open(self.config.run_path)

    def refused(self) -> dict[str, int]:
        with closing(self.store()) as store:
            return {refusal.reason: refusal.count for refusal in store.refusals()}


@pytest.fixture
def fleet(mosquitto: int, tmp_path: Path, artifacts: Artifacts, initial: State) -> Iterator[Fleet]:
    fleet = Fleet(mosquitto, tmp_path, artifacts, initial)
    yield fleet
    for device in fleet.devices:
        device.link.close()


def retained_below(port: int, pattern: str) -> list[str]:
    """The topics on which the broker keeps a message."""
    link = Link("127.0.0.1", port, identity="observer")
    link.open()
    link.subscribe(pattern)
    topics = []
    while (event := link.receive(0.5)) is not None:
        if isinstance(event, Received) and event.retained:
            topics.append(event.topic)
    link.close()
    return topics


def test_a_run_ends_in_the_mean_of_what_its_devices_sent(fleet: Fleet) -> None:
    run = fleet.start()
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
    shapes = fleet.artifacts.manifest.shapes
    assert model_id(decode_frame((run_dir / "model.frame").read_bytes(), shapes).state) == model_id(expected)
    assert {path.name for path in run_dir.iterdir()} == {STORE_NAME, "model.onnx", "model.frame", "models", "updates"}
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


def test_nothing_but_the_last_task_is_left_on_the_broker(fleet: Fleet) -> None:
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
    # Four small files, one of three chunks, and the manifest; from round 2 on also the model.
    assert [len(topics) for topics in kept] == [8, 9]
    assert model in kept[1]
    assert retained_below(fleet.port, f"{TOPICS.root}/blob/#") == []
    assert retained_below(fleet.port, TOPICS.round) == [TOPICS.round]
    devices[0].until(lambda: devices[0].task is not None and devices[0].task.state == "finished")


def test_round_1_is_not_published_since_devices_have_it_in_the_checkpoint(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    assert task.model_id == fleet.artifacts.manifest.initial_model
    assert retained_below(fleet.port, TOPICS.chunk(task.model.sha256, "+")) == []
    run.coordinator.interrupt()
    run.result()


def test_an_accepted_update_is_on_disk_before_the_device_hears_of_it(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2)
    first, _ = fleet.join("d1", "d2")
    task = first.until_round(1)
    assert isinstance(first.deliver(task), Accepted)
    assert (fleet.config.run_path / "updates/1/d1.frame").read_bytes() == first.frame_of(task)
    with closing(fleet.store()) as store:
        assert store.samples(1) == {"d1": 10}
    run.coordinator.interrupt()
    assert run.result().run.state == "stopped"


def test_offers_are_answered_again_and_other_updates_refused(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=2)
    first, _ = fleet.join("d1", "d2")
    task = first.until_round(1)
    first.deliver(task)
    assert isinstance(first.ask(first.offer_of(task, first.frame_of(task))), Accepted)
    other = first.offer_of(task, first.frame_of(task, answer("d9", 1, fleet.initial)))
    reply = first.ask(other)
    assert isinstance(reply, Refused)
    assert "already accepted" in reply.reason
    run.coordinator.interrupt()
    run.result()


def test_a_bad_update_is_refused_and_the_round_closes_without_it(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=2, min_updates=1, deadline_s=2.0)
    good, bad = fleet.join("d1", "d2")
    task = bad.until_round(1)
    poison = answer("d2", 1, fleet.initial)
    poison["fc.bias"] = np.full_like(poison["fc.bias"], np.nan)
    reply = bad.deliver(task, poison)
    assert isinstance(reply, Refused)
    assert "fc.bias holds NaN or infinity" in reply.reason
    good.deliver(good.until_round(1))
    summary = run.result()
    assert summary.run.model_id == model_id(average([(10, answer("d1", 1, fleet.initial))]))
    assert (summary.rounds[0].updates, summary.rounds[0].refused) == (1, 1)


def test_an_upload_in_any_order_with_repeats_and_a_pause_is_put_together(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    frame = device.frame_of(task)
    offer = device.offer_of(task, frame)
    assert isinstance(device.ask(offer), Grant)
    last = offer.update.chunks - 1
    assert last >= 3
    for index in (last, 1, last, 1):
        device.link.publish(TOPICS.upload("d1", offer.update.sha256, index), chunk_of(frame, offer.update, index))
    grant = device.ask(offer)
    assert isinstance(grant, Grant)
    assert grant.missing == ((0, 1), (2, last))
    assert isinstance(device.deliver(task), Accepted)
    assert run.result().rounds[0].updates == 1


def test_rubbish_is_counted_and_harms_nobody(fleet: Fleet) -> None:
    run = fleet.start(rounds=1, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    frame = device.frame_of(task)
    offer = device.offer_of(task, frame)
    evil = Link("127.0.0.1", fleet.port, identity="evil")
    evil.open()
    for payload in (b"", b"\x00\xff", b"[" * 50_000, b'{"run": "\xff"}', json.dumps({"run": 1}).encode()):
        for topic in (TOPICS.offer("evil"), TOPICS.report("evil"), TOPICS.status("evil")):
            evil.publish(topic, payload)
    evil.publish(TOPICS.upload("evil", "x", 0), b"never granted")
    evil.publish(f"{TOPICS.root}/dev/evil/up/x/not-a-number", b"x")
    evil.publish(TOPICS.report("evil"), encode(report_of(task)))
    evil.publish(TOPICS.offer("evil"), encode(offer))
    grant = device.ask(offer)
    assert isinstance(grant, Grant)
    evil.publish(TOPICS.upload("d1", offer.update.sha256, 0), b"a chunk of the wrong size")
    evil.publish(TOPICS.upload("d1", offer.update.sha256, 999_999), b"")
    assert isinstance(device.deliver(task), Accepted)
    summary = run.result()
    evil.close()
    assert summary.run.model_id == model_id(average([(10, answer("d1", 1, fleet.initial))]))
    reasons = fleet.refused()
    assert sum(reasons.values()) >= 15
    assert any("not in the cohort" in reason for reason in reasons)
    assert any("no update was accepted" in reason for reason in reasons)


def test_a_stop_request_is_obeyed_after_the_open_round(fleet: Fleet) -> None:
    run = fleet.start(rounds=50, cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    with closing(fleet.store()) as store:
        store.request_stop()
    time.sleep(1.5)
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


def test_a_run_directory_is_never_overwritten(fleet: Fleet) -> None:
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    device.until_round(1)
    run.coordinator.interrupt()
    run.result()
    with pytest.raises(RunError, match="already holds a run"):
        fleet.start().result()


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


def test_a_disk_that_cannot_be_written_is_one_sentence(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: UpdateFiles, round_number: int, device: str, frame: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UpdateFiles, "save", full)
    run = fleet.start(cohort_size=1)
    (device,) = fleet.join("d1")
    task = device.until_round(1)
    offer = device.offer_of(task, device.frame_of(task))
    device.ask(offer)
    for index in range(offer.update.chunks):
        chunk = chunk_of(device.frame_of(task), offer.update, index)
        device.link.publish(TOPICS.upload("d1", offer.update.sha256, index), chunk)
    with pytest.raises(RunError, match=r"cannot write to the run directory .*No space left on device"):
        run.result()
    device.listen(0.5)
    assert device.replies == []
