"""Worker processes give the bits that the leader alone would give, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import average

from sparsyedge.coordinator.aggregation.alignment import compare
from sparsyedge.coordinator.aggregation.mean import average as mean
from sparsyedge.coordinator.aggregation.pair_cosines import mean_pair_cosine
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.round_entries import EntryFile, Member, RoundEntries
from sparsyedge.coordinator.workers import jobs
from sparsyedge.coordinator.workers.pool import WorkerPool
from sparsyedge.coordinator.workers.shared_model import SharedModel
from sparsyedge.coordinator.workers.threads import Threads
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.frame import frame_of

pytestmark = pytest.mark.heavy

BASE_ID = "b" * 64
DEVICES = 9


@pytest.fixture
def shared(manifest: Manifest, initial: State) -> SharedModel:
    model = SharedModel(layout_of(manifest))
    for name, tensor in initial.items():
        model.state[name][...] = tensor
    return model


@pytest.fixture
def base(manifest: Manifest, shared: SharedModel) -> RoundBase:
    return RoundBase(manifest, layout_of(manifest), shared.state)


@pytest.fixture(params=[1, 2, 3])
def pool(
    request: pytest.FixtureRequest, manifest: Manifest, shared: SharedModel, base: RoundBase, tmp_path: Path
) -> Iterator[WorkerPool]:
    made = WorkerPool(request.param, run="r", manifest=manifest, model=shared, base=base, folder=tmp_path / "updates")
    made.begin(BASE_ID)
    yield made
    made.close()


def update_of(initial: State, device: int) -> State:
    generator = np.random.default_rng(device)
    moved = {
        name: (tensor + 0.1 * np.abs(generator.standard_normal(tensor.shape))).astype(np.float32)
        for name, tensor in initial.items()
    }
    return prune_global(moved, ["fc.weight"], 0.5)


def packed(state: State, *, round_number: int = 1) -> bytes:
    return frame_of(state, run="r", round_number=round_number, base_id=BASE_ID, prunable=["fc.weight"])


def verified(pool: WorkerPool, frames: list[bytes]) -> list[jobs.Answer]:
    """The answers to frames, in their order."""
    numbers = [pool.submit(frame, round_number=1) for frame in frames]
    found: dict[int, jobs.Answer] = {}
    until_s = time.monotonic() + 60
    while len(found) < len(numbers):
        assert time.monotonic() < until_s
        found |= {answer.job: answer for answer in pool.collect(0.5)}
    return [found[number] for number in numbers]


def entries_of(pool: WorkerPool, base: RoundBase, initial: State) -> RoundEntries:
    answers = verified(pool, [packed(update_of(initial, device)) for device in range(DEVICES)])
    members = []
    for number, answer in enumerate(answers):
        assert isinstance(answer, jobs.Verified)
        members.append(Member(answer.place, 1.0 + number))
    return RoundEntries(base, pool.files, members, pool)


def test_the_cosine_of_pairs_has_the_same_bits_with_any_number_of_workers(
    pool: WorkerPool, base: RoundBase, initial: State
) -> None:
    answers = verified(pool, [packed(update_of(initial, device)) for device in range(DEVICES)])
    assert all(isinstance(answer, jobs.Verified) for answer in answers)
    found = [answer for answer in answers if isinstance(answer, jobs.Verified)]
    entries = RoundEntries(base, pool.files, [Member(answer.place, 1.0) for answer in found], pool)
    norms = np.stack([answer.measures.norms for answer in found])
    alone = mean_pair_cosine(replace(entries, workers=None), norms)
    assert alone is not None
    assert 0 < alone < 1
    assert mean_pair_cosine(entries, norms) == alone


def test_the_mean_has_the_bits_of_the_dense_way_with_any_number_of_workers(
    pool: WorkerPool, base: RoundBase, initial: State
) -> None:
    entries = entries_of(pool, base, initial)
    expected = average((1.0 + device, update_of(initial, device)) for device in range(DEVICES))
    assert model_id(mean(entries).tensors(base.layout)) == model_id(expected)


def test_devices_compare_as_they_do_in_one_process(pool: WorkerPool, base: RoundBase, initial: State) -> None:
    entries = entries_of(pool, base, initial)
    alone = RoundEntries(base, pool.files, entries.members)
    found, expected = (compare(each, range(DEVICES)) for each in (entries, alone))
    assert np.array_equal(found.products, expected.products)
    assert np.array_equal(found.squares, expected.squares)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads_of_one_process_give_the_same_bits(
    pool: WorkerPool, base: RoundBase, initial: State, count: int
) -> None:
    alone = replace(entries_of(pool, base, initial), workers=None)
    shared = replace(alone, workers=Threads(count))
    assert model_id(mean(shared).tensors(base.layout)) == model_id(mean(alone).tensors(base.layout))
    for peers in (range(DEVICES), [1, 4, 7]):
        found, expected = compare(shared, peers), compare(alone, peers)
        assert np.array_equal(found.products, expected.products)
        assert np.array_equal(found.squares, expected.squares)
    norms = np.ones((DEVICES, len(base.layout.weights) + len(base.layout.others)))
    assert mean_pair_cosine(shared, norms) == mean_pair_cosine(alone, norms)


def test_a_bad_update_is_refused_with_the_reason(pool: WorkerPool, initial: State) -> None:
    broken = update_of(initial, 1)
    broken["fc.bias"][0] = np.nan
    found = verified(pool, [packed(broken), packed(initial), packed(update_of(initial, 2), round_number=7), b"x" * 99])
    reasons = [answer.reason for answer in found if isinstance(answer, jobs.Refused)]
    assert [reason.partition(";")[0] for reason in reasons] == [
        "fc.bias holds NaN or infinity",
        "update has 2048 non-zero weights, sparsity 0.5 allows 1024",
        f"frame is for run 'r', round 7, base '{BASE_ID[:12]}'",
        "frame starts with b'xxxx', not b'SEF2': not a frame, or of another version",
    ]


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(
    pool: WorkerPool, base: RoundBase, initial: State
) -> None:
    frames = [packed(update_of(initial, device)) for device in range(DEVICES)]
    numbers = [pool.submit(frame, round_number=1) for frame in frames]
    found: dict[int, jobs.Answer] = {}
    killed = 0
    while len(found) < len(numbers):
        if killed < 2 and len(found) >= 3 * killed:
            os.kill(pool.pids[killed % len(pool.pids)], signal.SIGKILL)
            killed += 1
        found |= {answer.job: answer for answer in pool.collect(0.5)}
    os.kill(pool.pids[0], signal.SIGKILL)
    members = []
    for number, job in enumerate(numbers):
        answer = found[job]
        assert isinstance(answer, jobs.Verified)
        members.append(Member(answer.place, 1.0 + number))
    expected = average((1.0 + device, update_of(initial, device)) for device in range(DEVICES))
    entries = RoundEntries(base, pool.files, members, pool)
    assert model_id(mean(entries).tensors(base.layout)) == model_id(expected)


def test_no_process_is_left_when_the_pool_is_closed(pool: WorkerPool) -> None:
    pids = pool.pids
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_that_died_without_a_job_do_not_count_against_the_next_update(pool: WorkerPool, initial: State) -> None:
    verified(pool, [packed(update_of(initial, 1))])
    for _ in range(3):
        kill_all(pool)
        (answer,) = verified(pool, [packed(update_of(initial, 2))])
        assert isinstance(answer, jobs.Verified)


def test_a_stop_signal_to_the_whole_group_leaves_the_workers_to_the_leader(pool: WorkerPool, initial: State) -> None:
    verified(pool, [packed(update_of(initial, device)) for device in range(DEVICES)])
    pids = pool.pids
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    (answer,) = verified(pool, [packed(update_of(initial, 2))])
    assert isinstance(answer, jobs.Verified)
    assert pool.pids == pids


def test_workers_that_cannot_start_are_the_jobs_refusal_and_no_error_of_the_leader(
    manifest: Manifest, shared: SharedModel, base: RoundBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.workers.pool.COMMAND", "raise SystemExit(3)")
    # The setup does not fit the socket's buffer, so the leader is still sending it when the process ends.
    pool = WorkerPool(2, run="r" * (1 << 21), manifest=manifest, model=shared, base=base, folder=tmp_path / "updates")
    pool.begin(BASE_ID)
    (answer,) = verified(pool, [b"x" * 99])
    pool.close()
    assert isinstance(answer, jobs.Refused)
    assert answer.reason == "3 processes in turn did not survive it"


def test_workers_import_nothing_from_the_present_folder(
    manifest: Manifest,
    shared: SharedModel,
    base: RoundBase,
    initial: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)
    pool = WorkerPool(1, run="r", manifest=manifest, model=shared, base=base, folder=tmp_path / "updates")
    pool.begin(BASE_ID)
    (answer,) = verified(pool, [packed(update_of(initial, 1))])
    pool.close()
    assert isinstance(answer, jobs.Verified)


def test_a_full_disk_is_an_error_of_the_machine_and_not_of_the_update(
    manifest: Manifest,
    shared: SharedModel,
    base: RoundBase,
    initial: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(folder: Path, base: RoundBase, *, number: int) -> EntryFile:
        return EntryFile(os.open("/dev/full", os.O_RDWR), base, number=number)

    monkeypatch.setattr(EntryFile, "create", full)
    pool = WorkerPool(2, run="r", manifest=manifest, model=shared, base=base, folder=tmp_path)
    pool.begin(BASE_ID)
    with pytest.raises(OSError, match="No space left on device"):
        verified(pool, [packed(update_of(initial, 1))])
    pool.close()


def test_a_model_without_weights_has_a_mean_too(pool: WorkerPool, base: RoundBase) -> None:
    assert list(pool.means(RoundEntries(base, pool.files, []), [], total=1.0, senders_only=False)) == []


def kill_all(pool: WorkerPool) -> None:
    """Kill the workers, and wait until they are gone."""
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
