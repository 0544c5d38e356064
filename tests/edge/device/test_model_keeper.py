"""Which models a device keeps for predictions, against a coordinator that lives in a fake link."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fixtures.fake_coordinator import CHUNK, DEVICE, TOPICS, Coordinator, round_task
from fixtures.linear_regression import BIAS, WEIGHT, make_artifacts

from sparsyedge.edge.commands import device_predict_command
from sparsyedge.edge.config import DataConfig, DeviceConfig
from sparsyedge.edge.device import courier as courier_module
from sparsyedge.edge.device import model_keeper
from sparsyedge.edge.device.blob_source import BlobSource
from sparsyedge.edge.device.cache import Cache
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.device.model_keeper import ModelKeeper
from sparsyedge.edge.device.model_place import Candidate
from sparsyedge.edge.device.task_inputs import TaskInputs
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.inference.template import strip_weights
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, File
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import DeviceStatus, Quality, RoundTask, decode
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.frame import frame_of

pytestmark = pytest.mark.timeout(300)

FEATURES = 6


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return make_artifacts(tmp_path / "artifacts", features=FEATURES)


@pytest.fixture
def fleet(artifacts: Artifacts) -> Coordinator:
    """A broker with all artifacts of the run."""
    coordinator = Coordinator()
    offer_artifacts(coordinator, artifacts)
    return coordinator


def offer_artifacts(coordinator: Coordinator, artifacts: Artifacts) -> None:
    for path in artifacts.directory.iterdir():
        coordinator.offer_blob(path.read_bytes())


class Device:
    """A device's keeper with what it needs around it."""

    def __init__(self, folder: Path, coordinator: Coordinator, **keys: Any) -> None:
        self.folder = folder / "default" / DEVICE
        self.config = DeviceConfig(
            id=DEVICE, data=DataConfig(dataset="digits"), work_dir=str(folder), threads=1, **keys
        )
        member = Member(device=DEVICE, topics=TOPICS, boot_id="boot", software="test", samples=1)
        self.coordinator = coordinator
        self.courier = Courier(coordinator, member)
        self.courier.join()
        source = BlobSource(self.courier, self.folder / "downloads")
        self.inputs = TaskInputs(source, Cache(self.folder), keys=None)
        self.keeper = ModelKeeper(self.config, self.folder, self.courier)
        self.keeper.begin()

    def follow(self, task: RoundTask) -> None:
        """See the task, and do about its model what an idle device does."""
        self.coordinator.announce(task)
        self.courier.drain()
        self.keeper.follow(task, self.inputs, keep_going=lambda: True)
        self.keeper.finish()

    def note(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "model" / "current" / "model.json").read_text())
        return content

    @property
    def has_model(self) -> bool:
        return (self.folder / "model" / "current").exists()


def weights(value: float) -> State:
    return {WEIGHT: np.full((1, FEATURES), value, dtype=np.float32), BIAS: np.zeros(1, dtype=np.float32)}


@pytest.fixture
def task_of(fleet: Coordinator, artifacts: Artifacts) -> Callable[..., RoundTask]:
    def make(value: float, **changes: Any) -> RoundTask:
        """The end of a run, with a model of which all weights have this value."""
        state = weights(value)
        number = changes.get("model_round", 3)
        frame = frame_of(state, run="demo", round_number=4, base_id=model_id(state), prunable=[WEIGHT])
        return round_task(
            **{
                "state": "finished",
                "manifest": blob_of((artifacts.directory / MANIFEST_NAME).read_bytes(), chunk_bytes=CHUNK),
                "model_id": model_id(state),
                "model": fleet.offer_blob(frame),
                "model_round": number,
                "quality": Quality(sparsity=0.0, rmse=0.25, r_squared=0.5),
                **changes,
            }
        )

    return make


def test_the_model_of_a_finished_run_is_in_place_and_the_coordinator_hears_of_it(
    tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask]
) -> None:
    device = Device(tmp_path, fleet)
    task = task_of(0.5)
    device.follow(task)
    note = device.note()
    assert (note["round"], note["model_id"], note["rmse"]) == (3, task.model_id, 0.25)
    assert note["sha256"] == sha256_file(device.folder / "model" / "current" / "model.onnx")
    assert device.keeper.news()
    assert not device.keeper.news()
    device.courier.say_hello()
    held = decode(fleet.sent("status")[-1], DeviceStatus).holds
    assert held
    assert (held.run, held.round, held.model_id, held.predict_ms) == ("demo", 3, task.model_id, note["predict_ms"])
    # A restart reads it from disk.
    assert Device(tmp_path, fleet).courier.holds == held


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        ({"model": "off"}, {}),
        ({}, {"state": "open"}),
        ({}, {"model_round": msgspec.UNSET}),
        ({"model": "every"}, {"model_round": 0, "state": "open"}),
    ],
    ids=["switched off", "not finished", "an older coordinator", "nothing trained yet"],
)
def test_a_model_that_is_not_asked_for_is_not_fetched(
    keys: dict[str, Any],
    changes: dict[str, Any],
    tmp_path: Path,
    fleet: Coordinator,
    task_of: Callable[..., RoundTask],
) -> None:
    device = Device(tmp_path, fleet, **keys)
    device.follow(task_of(0.5, **changes))
    assert not device.has_model
    assert fleet.fetched == []


def test_every_rounds_model_is_written_once_and_the_one_before_is_kept(
    tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask]
) -> None:
    device = Device(tmp_path, fleet, model="every")
    for number in (1, 2):
        device.follow(task_of(number / 4, state="open", model_round=number))
    current = device.folder / "model" / "current" / "model.onnx"
    inode = current.stat().st_ino
    device.follow(task_of(0.5, model_round=2))
    assert current.stat().st_ino == inode, "a model that has not changed is not written again"
    before = json.loads((device.folder / "model" / "previous" / "model.json").read_text())
    assert (before["round"], device.note()["round"]) == (1, 2)


def test_a_skeleton_is_enough(tmp_path: Path, artifacts: Artifacts, task_of: Callable[..., RoundTask]) -> None:
    content = strip_weights((artifacts.directory / "inference").read_bytes(), set(artifacts.manifest.shapes))
    assert len(content) < (artifacts.directory / "inference").stat().st_size
    (artifacts.directory / "skeleton").write_bytes(content)
    files = {**artifacts.manifest.files, "skeleton": File("skeleton", blob_of(content).sha256, len(content))}
    smaller = Artifacts(artifacts.directory, msgspec.structs.replace(artifacts.manifest, files=files))
    smaller.save_manifest()
    fleet = Coordinator()
    offer_artifacts(fleet, smaller)
    device = Device(tmp_path, fleet)
    task = task_of(0.5)
    fleet.offer_blob(frame_of(weights(0.5), run="demo", round_number=4, base_id=task.model_id, prunable=[WEIGHT]))
    device.follow(task)
    assert device.has_model
    assert files["inference"].sha256 not in fleet.fetched


def test_a_broker_that_has_forgotten_the_model_costs_a_moment_and_is_asked_again_later(
    tmp_path: Path,
    fleet: Coordinator,
    task_of: Callable[..., RoundTask],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_keeper, "SILENCE_S", 0.05)
    monkeypatch.setattr(courier_module, "STALL_S", 0.02)
    task = task_of(0.5)
    chunk = TOPICS.chunk(task.model.sha256, 0)
    forgotten = fleet.retained.pop(chunk)
    device = Device(tmp_path, fleet)
    device.follow(task)
    assert not device.has_model
    fleet.retained[chunk] = forgotten
    device.follow(task)
    assert not device.has_model, "asked again at once"
    monkeypatch.setattr(device.keeper, "_again_s", 0.0)
    device.follow(task)
    assert device.has_model


def test_a_model_that_is_not_the_announced_one_leaves_the_old_one_in_place(
    tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask], caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(tmp_path, fleet)
    device.follow(task_of(0.5))
    other = task_of(0.75, model_round=4)
    device.follow(msgspec.structs.replace(other, model_id="f" * 64))
    assert "cannot get the model of run demo" in caplog.text
    assert device.note()["round"] == 3


def test_a_model_that_answers_with_nonsense_is_not_put_in_place(
    tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask], caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(tmp_path, fleet)
    device.follow(task_of(0.5))
    state = weights(1.0)
    state[BIAS][:] = np.inf
    device.keeper._writer.put(
        "global",
        Candidate(
            state,
            device.inputs.inference_artifacts(task_of(0.5), wanted=lambda: True),
            Origin(run="demo", round=4, rmse=0.1, sparsity=0.0),
            "e" * 64,
        ),
    )
    device.keeper.finish()
    assert "the model of round 4 is not in place" in caplog.text
    assert device.note()["round"] == 3


def test_the_command_runs_once_per_model_also_over_restarts(
    tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask]
) -> None:
    hook = ("sh", "-c", f"echo $SPARSYEDGE_ROUND >> {tmp_path / 'told'}")
    Device(tmp_path, fleet).follow(task_of(0.5))
    told = Device(tmp_path, fleet, on_model=hook)
    told.keeper.finish()
    for _ in range(2):
        device = Device(tmp_path, fleet, on_model=hook)
        device.follow(task_of(0.5))
    device.follow(task_of(0.25, model_round=5))
    assert (tmp_path / "told").read_text().split() == ["3", "5"]


def test_predict_says_when_a_device_gets_its_model(tmp_path: Path) -> None:
    config = tmp_path / "device.toml"
    config.write_text(f'id = "pi-01"\nwork_dir = "{tmp_path}"\n[data]\ndataset = "digits"\n')
    with pytest.raises(ArtifactError, match=r"has no model .* when its run is over"):
        device_predict_command.main(["--config", str(config), "x.npz"])
    with pytest.raises(ArtifactError, match=r"no model of its own .* `personalised"):
        device_predict_command.main(["--config", str(config), "--personal", "x.npz"])


@pytest.mark.parametrize("damage", ["model.json", "model.onnx"])
def test_predict_names_a_damaged_file(
    damage: str, tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask]
) -> None:
    device = Device(tmp_path, fleet)
    device.follow(task_of(0.5))
    (device.folder / "model" / "current" / damage).write_bytes(b"{}")
    config = tmp_path / "device.toml"
    config.write_text(f'id = "{DEVICE}"\nwork_dir = "{tmp_path}"\n[data]\ndataset = "digits"\n')
    with pytest.raises(ArtifactError, match=damage):
        device_predict_command.main(["--config", str(config), "x.npz"])


def test_predict_prints_the_values_of_a_regression(
    tmp_path: Path, fleet: Coordinator, task_of: Callable[..., RoundTask], capsys: pytest.CaptureFixture[str]
) -> None:
    Device(tmp_path, fleet).follow(task_of(0.5))
    config = tmp_path / "device.toml"
    config.write_text(f'id = "{DEVICE}"\nwork_dir = "{tmp_path}"\n[data]\ndataset = "digits"\n')
    np.savez(tmp_path / "x.npz", x=np.ones((1, FEATURES), dtype=np.float32))
    assert device_predict_command.main(["--config", str(config), "--json", str(tmp_path / "x.npz")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["predictions"][0]["values"][0]["value"] == pytest.approx(3.0)
    assert document["model"]["rmse"] == 0.25
    with pytest.raises(Exception, match="photo"):
        device_predict_command.main(["--config", str(config), str(tmp_path / "photo.png")])
