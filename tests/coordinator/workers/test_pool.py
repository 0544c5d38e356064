"""Worker processes give the bits that the leader alone would give, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import average

from sparsyedge.coordinator.aggregation.alignment import compare
from sparsyedge.coordinator.aggregation.mean import average as mean
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.round_entries import Member, RoundEntries
from sparsyedge.coordinator.workers import jobs
from sparsyedge.coordinator.workers.pool import WorkerPool
from sparsyedge.coordinator.workers.shared_model import SharedModel
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
