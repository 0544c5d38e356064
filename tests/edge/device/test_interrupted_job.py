"""A local job that was cut short goes on from its last finished epoch, and ends in the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fixtures.fake_coordinator import TOPICS, Coordinator, round_task
from fixtures.training_api import NEEDS_TRAINING_API, first_session

from sparsyedge.edge.data import Samples
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.device.energy import NullMeter, PhaseRecorder
from sparsyedge.edge.device.equipment import DeviceFiles
from sparsyedge.edge.device.interrupted_job import JobProgress, UnfinishedJob
from sparsyedge.edge.device.job_training import JobTraining
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.training.dense_session import DenseSession
from sparsyedge.edge.training.session import Session
from sparsyedge.edge.training.sparse_session import SparseSession
from sparsyedge.edge.training.trainer import JobCancelled, LocalJob, Trained, train

JOB = LocalJob(device_id="pi-01", round_number=2, seed=0, epochs=3, batch_size=8, learning_rate=0.05)


@pytest.fixture
def samples() -> Samples:
    rng = np.random.default_rng(0)
    return Samples(rng.standard_normal((20, 3, 16, 16), dtype=np.float32), rng.integers(0, 5, 20))


@pytest.fixture
def sparse_start(tiny: Artifacts) -> State:
    return prune_global(read_initial_state(tiny), tiny.manifest.prunable, 0.9)


@pytest.mark.parametrize("kind", [pytest.param(DenseSession, marks=NEEDS_TRAINING_API), SparseSession])
def test_a_job_that_goes_on_after_an_epoch_ends_in_the_same_model(
    kind: Callable[[Artifacts], Session], tiny: Artifacts, samples: Samples, sparse_start: State, tmp_path: Path
) -> None:
    undisturbed = kind(tiny)
    undisturbed.load(sparse_start)
    expected = train(undisturbed, samples, JOB)

    unfinished = UnfinishedJob(tmp_path / "job", tiny.manifest.shapes)
    session = kind(tiny)
    session.load(sparse_start)

    def keep(trained: Trained) -> None:
        unfinished.save(progress_of(trained), session.state())

    steps = iter(range(100))
    with pytest.raises(JobCancelled):
        train(session, samples, JOB, on_epoch=keep, keep_going=lambda: next(steps) < 7)

    found = unfinished.load("key")
    assert found is not None
    progress, state = found
    assert (progress.epochs, progress.steps) == (2, 6)
    restarted = kind(tiny)
    restarted.load(sparse_start)
    restarted.load(state)
    done = Trained(epochs=progress.epochs, steps=progress.steps, loss=progress.loss)
    assert train(restarted, samples, JOB, done=done) == expected
    assert model_id(restarted.state()) == model_id(undisturbed.state())


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_so_does_a_job_of_an_optimizer_that_keeps_its_memory(
    optimizer: str,
    export_training: Callable[..., Artifacts],
    samples: Samples,
    tmp_path: Path,
    coordinator: Coordinator,
) -> None:
    artifacts = export_training(optimizer=optimizer, state="keep", crop=2, flip=True, mixup=0.2)
    manifest = artifacts.manifest
    start = prune_global(read_initial_state(artifacts), manifest.prunable, 0.9)

    def run(folder: str, round_number: int, *, steps: int = 100) -> str:
        """One round of a device in that folder, which is switched off after so many steps; returns its model."""
        files, left = DeviceFiles(tmp_path / folder), iter(range(steps))
        session = SparseSession(artifacts)
        session.load(start)
        JobTraining(member(coordinator), files.job_path, files.optimizer).run(
            round_task(round=round_number, epochs=3, batch_size=8, learning_rate=0.01),
            session,
            samples,
            manifest,
            key=f"round {round_number}",
            recorder=PhaseRecorder(NullMeter()),
            keep_going=lambda: next(left, None) is not None,
        )
        return model_id(session.state())

    expected = [run("whole", 1), run("whole", 2)]
    for number in (1, 2):
        with pytest.raises(JobCancelled):
            run("cut", number, steps=7)
        assert run("cut", number) == expected[number - 1]
    # Without the memory of the first round, the second would end in another model.
    assert run("afresh", 2) != expected[1]
    # A round that is done again, because its update was lost, begins with the same memory.
    (tmp_path / "cut/job.checkpoint").unlink()
    assert run("cut", 2) == expected[1]


def member(coordinator: Coordinator) -> Courier:
    return Courier(coordinator, Member(device="pi-01", topics=TOPICS, boot_id="b", software="s", samples=20))


def progress_of(trained: Trained, key: str = "key") -> JobProgress:
    return JobProgress(
        key=key,
        epochs=trained.epochs,
        steps=trained.steps,
        loss=trained.loss,
        phases={"train": PhaseCost(1.0, 2.0)},
        bytes_down=5,
    )


def test_the_last_epoch_is_not_kept_since_the_update_follows_at_once(tiny: Artifacts, samples: Samples) -> None:
    heard: list[int] = []
    train(first_session(tiny), samples, JOB, on_epoch=lambda trained: heard.append(trained.epochs))
    assert heard == [1, 2]


STATE: State = {"w": np.array([1.5, 0.0, -0.0, 2.5], dtype=np.float32), "b": np.array([0.5], dtype=np.float32)}


@pytest.fixture
def job(tmp_path: Path) -> UnfinishedJob:
    return UnfinishedJob(tmp_path / "job", {"w": (4,), "b": (1,)})


def test_another_task_s_job_is_of_no_use(job: UnfinishedJob) -> None:
    job.save(progress_of(Trained(epochs=1, steps=3, loss=0.5)), STATE)
    assert job.load("another") is None


@pytest.mark.parametrize("damage", [lambda c: c[:-3], lambda c: c[:2], lambda c: b"", lambda c: c[:4] + b"x" + c[5:]])
def test_a_damaged_job_is_removed_and_begins_again(
    damage: Callable[[bytes], bytes], job: UnfinishedJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job.save(progress_of(Trained(epochs=1, steps=3, loss=0.5)), STATE)
    path = tmp_path / "job"
    path.write_bytes(damage(path.read_bytes()))
    assert job.load("key") is None
    assert not path.exists()
    assert "is damaged" in caplog.text


def test_without_a_file_there_is_no_job(job: UnfinishedJob) -> None:
    assert job.load("key") is None
    job.clear()
