"""A device looks at its data before every round, trains on what is there, and says what is new, broken or missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.fake_coordinator import SHAPES, Coordinator, FakeSession, frame_of, manifest, round_task
from msgspec import UNSET

from sparsyedge.edge.data.loaders import open_source
from sparsyedge.edge.device import agent as agent_module
from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.local_data import LocalData
from sparsyedge.edge.protocol.messages import DataNote, DeviceStatus, Offer, Report, RoundTask, decode
from sparsyedge.edge.tensors import model_id

pytestmark = pytest.mark.timeout(300)

MakeAgent = Callable[..., Agent]
NAMES = tuple("abcd")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "TICK_S", 0.01)
    monkeypatch.setattr(agent_module, "LOOK_S", 0.01)


def write_images(folder: Path, *shades: int, label: str = "d") -> None:
    (folder / label).mkdir(parents=True, exist_ok=True)
    for shade in shades:
        (folder / label / f"{shade}.ppm").write_bytes(b"P6\n8 8\n255\n" + bytes([shade]) * 192)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", *range(6))
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def named_model(coordinator: Coordinator) -> RoundTask:
    """A task for a model with the classes a to d."""
    content = manifest(class_names=list(NAMES))
    return round_task(manifest=coordinator.offer_blob(content))


def opened(folder: Path, *, min_samples: int = 1) -> LocalData:
    return LocalData.opened(open_source(str(folder)), min_samples=min_samples)


def offers(coordinator: Coordinator) -> dict[int, Offer]:
    return {offer.round: offer for offer in (decode(payload, Offer) for payload in coordinator.sent("offer"))}


def statuses(coordinator: Coordinator) -> list[DeviceStatus]:
    return [decode(payload, DeviceStatus) for payload in coordinator.sent("status")]


def next_round(coordinator: Coordinator, task: RoundTask, number: int) -> RoundTask:
    """Round 2 and later, from a model that the coordinator offers."""
    state = {name: np.full(shape, number, np.float32) for name, shape in SHAPES.items()}
    frame = frame_of(state, base_id=model_id(state), round_number=number)
    model = coordinator.offer_blob(frame)
    return msgspec.structs.replace(task, round=number, model_id=model_id(state), model=model)


def test_what_changed_between_two_rounds_is_trained_on_reported_and_logged_once(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    named_model: RoundTask,
    photos: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def change() -> None:
        coordinator.assembly = None
        coordinator.after_verdict = lambda: coordinator.announce(round_task(state="finished"))
        write_images(photos, 100, 101, 102)
        (photos / "d" / "0.ppm").unlink()
        (photos / "d" / "half.ppm").write_bytes(b"P6\n8 8\n255\n")
        coordinator.announce(next_round(coordinator, named_model, 2))

    coordinator.after_verdict = change
    coordinator.announce(named_model)
    make_agent(local=opened(photos)).run()
    found = offers(coordinator)
    assert (found[1].samples, found[2].samples) == (6, 8)
    assert found[1].report.data is UNSET
    note = found[2].report.data
    assert isinstance(note, DataNote)
    assert (note.added, note.changed, note.removed, note.broken) == (3, 0, 1, 1)
    assert note.trouble == f"{photos}/d/half.ppm ends after 0 of 192 bytes; replace it"
    assert statuses(coordinator)[-2].samples == 8
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("data: ")]
    assert said == [f"data: 3 new, 1 removed, 1 broken; 8 samples in all; {note.trouble}"]


def test_data_that_changes_during_a_round_counts_from_the_next_round_on(
    coordinator: Coordinator, make_agent: MakeAgent, named_model: RoundTask, photos: Path
) -> None:
    FakeSession.on_step = lambda: write_images(photos, 200 + FakeSession.steps)
    coordinator.announce(named_model)
    make_agent(local=opened(photos)).run()
    assert offers(coordinator)[1].samples == 6
    assert len(coordinator.sent("report")) == 1, "it is one job, and not trained again"


def test_a_device_with_too_little_data_says_so_and_comes_back_by_itself(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    named_model: RoundTask,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        publish(topic, payload, retain=retain, timeout_s=timeout_s)
        if topic.endswith("/status") and decode(payload, DeviceStatus).unfit:
            write_images(photos, 100, 101)

    monkeypatch.setattr(coordinator, "publish", watched)
    coordinator.announce(named_model)
    make_agent(local=opened(photos, min_samples=8)).run()
    said = statuses(coordinator)
    assert next(status.unfit for status in said if status.unfit) == "too little data, 6 of at least 8 samples"
    assert offers(coordinator)[1].samples == 8


def test_a_device_whose_folder_is_still_empty_waits_for_the_first_image(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    named_model: RoundTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        publish(topic, payload, retain=retain, timeout_s=timeout_s)
        if topic.endswith("/status") and decode(payload, DeviceStatus).unfit:
            write_images(folder, 1, 2, 3)

    monkeypatch.setattr(coordinator, "publish", watched)
    coordinator.announce(named_model)
    make_agent(local=opened(folder)).run()
    assert "0 of at least 1 samples" in next(status.unfit for status in statuses(coordinator) if status.unfit)
    assert offers(coordinator)[1].samples == 3


def test_a_class_that_the_model_does_not_know_keeps_the_device_out_until_it_is_renamed(
    coordinator: Coordinator,
    make_agent: MakeAgent,
    named_model: RoundTask,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_images(photos, 50, label="stranger")
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        publish(topic, payload, retain=retain, timeout_s=timeout_s)
        if topic.endswith("/status") and decode(payload, DeviceStatus).unfit and (photos / "stranger").exists():
            (photos / "stranger").rename(photos / "c")

    monkeypatch.setattr(coordinator, "publish", watched)
    coordinator.announce(named_model)
    make_agent(local=opened(photos)).run()
    assert "'stranger'" in next(status.unfit for status in statuses(coordinator) if status.unfit)
    assert offers(coordinator)[1].samples == 7


def test_a_job_that_was_cut_short_begins_again_if_the_data_has_changed_since(
    coordinator: Coordinator, make_agent: MakeAgent, named_model: RoundTask, photos: Path
) -> None:
    agent = make_agent(local=opened(photos))
    steps_of_an_epoch = 2

    def stop() -> None:
        if FakeSession.steps == steps_of_an_epoch + 1:
            agent.stop()

    FakeSession.on_step = stop
    coordinator.announce(named_model)
    agent.run()
    before = FakeSession.steps
    FakeSession.on_step = None
    write_images(photos, 100)
    make_agent(local=opened(photos)).run()
    assert FakeSession.steps == before + 2 * steps_of_an_epoch, "both epochs, on the new data"
    report = decode(coordinator.sent("report")[0], Report)
    assert report.steps == 2 * steps_of_an_epoch
