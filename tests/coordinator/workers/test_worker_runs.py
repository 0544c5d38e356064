"""A run has the same models, figures and refusals whether worker processes check its updates or the leader does."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fixtures.scripted_fleet import FakeDevice, Fleet, answer

from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName
from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.messages import Accepted, Refused, RoundTask
from sparsyedge.edge.tensors import State

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(available_cores() < 2, reason="two worker processes are refused on one core"),
]

DEVICES = tuple(f"d{number}" for number in range(1, 9))
ROUNDS = 2


class Found(NamedTuple):
    """What must not depend on who checks updates."""

    models: list[str]
    metrics: dict[int, dict[str, float]]
    refused: dict[str, int]


def run(fleet: Fleet, *, workers: int, rule: RuleName) -> Found:
    thread = fleet.start(
        rounds=ROUNDS,
        cohort_size=len(DEVICES),
        ingest_workers=workers,
        aggregation=AggregationConfig(rule=rule, byzantine=1 if rule == "krum" else None),
    )
    devices = fleet.join(*DEVICES)
    for number in range(1, ROUNDS + 1):
        for device in devices:
            deliver(device, device.until_round(number))
    thread.result()
    for device in devices:
        device.link.close()
    fleet.devices.clear()
    with closing(fleet.store()) as store:
        return Found([record.model_id for record in store.rounds()], store.metrics(), fleet.refused())


def deliver(device: FakeDevice, task: RoundTask) -> None:
    """Every device sends a good update in the end: d2 after a bad one, d3's points the other way."""
    state = answer(device.name, task.round, device.initial)
    if device.name == "d2":
        reply = device.deliver(task, state | {"fc.bias": np.full_like(state["fc.bias"], np.nan)})
        assert isinstance(reply, Refused)
    if device.name == "d3":
        opposite = {name: 2 * device.initial[name] - tensor for name, tensor in state.items()}
        state = prune_global(opposite | {"bn.running_var": state["bn.running_var"]}, ["fc.weight"], 0.5)
    assert isinstance(device.deliver(task, state), Accepted)


@pytest.mark.parametrize("rule", ["aligned", "median", "trimmed", "krum"])
def test_a_run_with_workers_gives_the_models_and_figures_of_one_without(
    rule: RuleName, mosquitto: int, tmp_path: Path, artifacts: Artifacts, initial: State
) -> None:
    alone, shared = (
        run(Fleet(mosquitto, tmp_path / str(workers), artifacts, initial), workers=workers, rule=rule)
        for workers in (1, 2)
    )
    assert shared.models == alone.models
    assert len(set(shared.models)) == ROUNDS
    assert shared.refused == alone.refused
    assert any("fc.bias holds NaN or infinity" in reason for reason in shared.refused)
    assert shared.metrics.keys() == alone.metrics.keys()
    for number, figures in alone.metrics.items():
        assert shared.metrics[number] == pytest.approx(figures, rel=1e-9, abs=1e-9)


def test_a_run_that_is_continued_with_workers_decodes_what_was_accepted_without(fleet: Fleet) -> None:
    first, second = fleet.join("d1", "d2")
    for workers in (1, 2):
        thread = fleet.start(rounds=1, cohort_size=2, ingest_workers=workers)
        if workers == 1:
            assert isinstance(first.deliver(first.until_round(1)), Accepted)
            thread.coordinator.interrupt()
            assert thread.result().run.state == "stopped"
    first.task = second.task = None
    task = second.until_round(1)
    # The device has not heard that its update was accepted, so it offers it again.
    assert isinstance(first.deliver(task), Accepted)
    assert isinstance(second.deliver(task), Accepted)
    assert thread.result().rounds[0].updates == 2


def test_two_devices_with_the_same_update_both_count(fleet: Fleet) -> None:
    thread = fleet.start(rounds=1, cohort_size=2, ingest_workers=2)
    first, second = fleet.join("d1", "d2")
    state = answer("d1", 1, fleet.initial)
    for device in (first, second):
        assert isinstance(device.deliver(device.until_round(1), state), Accepted)
    assert thread.result().rounds[0].updates == 2


def test_no_process_and_no_file_is_left_open_after_a_run_that_was_interrupted(fleet: Fleet) -> None:
    before = open_files()
    children = children_of(os.getpid())
    for _ in range(2):
        thread = fleet.start(rounds=1, cohort_size=1, ingest_workers=2)
        (device,) = fleet.join("d1")
        device.until_round(1)
        assert len(children_of(os.getpid())) == len(children) + 2
        thread.coordinator.interrupt()
        thread.result()
        device.link.close()
        fleet.devices.clear()
        del thread
    assert children_of(os.getpid()) == children
    assert open_files() == before


def open_files() -> list[str]:
    """What this process has open for a run."""
    found = (str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sorted(name for name in found if "/updates/" in name or "memfd:sparsyedge" in name)


def children_of(pid: int) -> set[str]:
    """The ids of a process's children."""
    return {child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}
