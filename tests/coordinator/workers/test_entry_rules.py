"""Rules that look at single entries give the same bits with any number of worker processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import manifest_of

from sparsyedge.coordinator.aggregation.entry_blocks import entry_stretches
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.round_entries import Member, RoundEntries
from sparsyedge.coordinator.aggregation.rules import RoundContext, make_rule
from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName
from sparsyedge.coordinator.workers.pool import WorkerPool
from sparsyedge.coordinator.workers.shared_model import SharedModel
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.methods import Method, make_method
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.flat_frame import flatten

pytestmark = pytest.mark.heavy

DEVICES = 9
WORKERS = 3
METHODS = {
    "sparsyfed": make_method("sparsyfed", sparsity=0.7),
    "nonzero": make_method("sparsyfed", sparsity=0.7, aggregation="nonzero-mean"),
    "delta": make_method("sparsyfed", sparsity=0.7, uplink="delta"),
    "dense": make_method("dense"),
}


@pytest.fixture
def model() -> State:
    """A weight of several stretches, and a tensor that is not pruned."""
    generator = np.random.default_rng(0)
    return {
        "weight": generator.standard_normal((600, 300), dtype=np.float32),
        "bias": generator.standard_normal(300, dtype=np.float32),
    }


@contextmanager
def worker_round(manifest: Manifest, model: State, folder: Path) -> Iterator[RoundEntries]:
    """A round whose updates lie in the files of several workers."""
    shared = SharedModel(layout_of(manifest))
    for name, tensor in model.items():
        shared.state[name][...] = tensor
    base = RoundBase(manifest, layout_of(manifest), shared.state)
    pool = WorkerPool(WORKERS, run="r", manifest=manifest, model=shared, base=base, folder=folder)
    with closing(pool):
        pool.begin("b" * 64)
        members = []
        for device in range(DEVICES):
            update = base.whole(flatten(update_of(model, manifest.method, device), base.layout))
            members.append(Member(pool.files[device % WORKERS].append(update), 1.0 + device))
        yield RoundEntries(base, pool.files, members, pool)


def update_of(model: State, method: Method, device: int) -> State:
    generator = np.random.default_rng(device + 1)
    moved = {
        name: (tensor + 0.1 * generator.standard_normal(tensor.shape)).astype(np.float32)
        for name, tensor in model.items()
    }
    if method.uplink == "delta":
        stays = generator.random(moved["weight"].shape) < 0.7
        moved["weight"][stays] = model["weight"][stays]
        return moved
    return prune_global(moved, ["weight"], 0.7) if method.uplink == "weights" else moved


@pytest.mark.parametrize(
    ("rule", "kind"),
    [("trimmed", kind) for kind in METHODS] + [("median", kind) for kind in ("sparsyfed", "nonzero", "dense")],
)
def test_entries_combine_to_the_bits_of_one_process(rule: RuleName, kind: str, model: State, tmp_path: Path) -> None:
    manifest = manifest_of(model, METHODS[kind], ["weight"])
    combined = make_rule(AggregationConfig(rule=rule, trim=0.25), manifest.method)
    with worker_round(manifest, model, tmp_path / "updates") as updates:
        assert len(list(entry_stretches(updates))) >= WORKERS
        alone = RoundEntries(updates.base, updates.files, updates.members)
        found, expected = (combined.combine(each, RoundContext()) for each in (updates, alone))
        states = [each.tensors(updates.base.layout) for each in (found, expected)]
        assert model_id(states[0]) == model_id(states[1])
        assert (found.positions is None) == (expected.positions is None)
        assert np.any(states[0]["weight"] != model["weight"])


def test_a_worker_that_is_killed_while_it_combines_changes_nothing(model: State, tmp_path: Path) -> None:
    manifest = manifest_of(model, METHODS["sparsyfed"], ["weight"])
    rule = make_rule(AggregationConfig(rule="median"), manifest.method)
    with worker_round(manifest, model, tmp_path / "updates") as updates:
        pool = updates.workers
        assert isinstance(pool, WorkerPool)
        alone = RoundEntries(updates.base, updates.files, updates.members)
        killed = pool.pids[0]
        # A stopped process takes its job and never answers.
        os.kill(killed, signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (killed, signal.SIGKILL)).start()
        found, expected = (rule.combine(each, RoundContext()) for each in (updates, alone))
        assert killed not in pool.pids
        assert model_id(found.tensors(updates.base.layout)) == model_id(expected.tensors(updates.base.layout))
