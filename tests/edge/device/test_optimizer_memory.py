"""What an optimizer remembers between rounds: which round gets which memory, and what a damaged one does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.fake_coordinator import round_task

from sparsyedge.edge.device.optimizer_memory import OptimizerMemory
from sparsyedge.edge.tensors import State

SHAPES = {"w.momentum": (3,)}


def state(value: float) -> State:
    return {"w.momentum": np.full(3, value, dtype=np.float32)}


def found(memory: OptimizerMemory, round_number: int) -> float | None:
    loaded = memory.load(round_task(round=round_number), SHAPES)
    return None if loaded is None else float(loaded["w.momentum"][0])


@pytest.fixture
def memory(tmp_path: Path) -> OptimizerMemory:
    return OptimizerMemory(tmp_path / "optimizer")


def test_a_round_begins_with_what_the_one_before_left_even_after_a_restart(
    memory: OptimizerMemory, tmp_path: Path
) -> None:
    assert found(memory, 1) is None
    memory.save(round_task(round=1), state(1))
    memory.save(round_task(round=3), state(3))
    assert found(OptimizerMemory(tmp_path / "optimizer"), 7) == 3


def test_a_round_that_is_done_again_begins_as_it_did_before(memory: OptimizerMemory) -> None:
    memory.save(round_task(round=2), state(2))
    memory.save(round_task(round=3), state(3))
    assert found(memory, 3) == 2
    memory.save(round_task(round=3), state(3.5))
    assert (found(memory, 3), found(memory, 4)) == (2, 3.5)


def test_a_run_that_starts_over_remembers_nothing(memory: OptimizerMemory) -> None:
    memory.save(round_task(round=2), state(2))
    assert found(memory, 1) is None
    memory.save(round_task(round=1), state(1))
    assert found(memory, 2) == 1


def test_another_run_and_other_artifacts_do_not_see_it(memory: OptimizerMemory) -> None:
    memory.save(round_task(round=2), state(2))
    other = msgspec.structs.replace(round_task(round=3), run="another")
    assert memory.load(other, SHAPES) is None
    manifest = msgspec.structs.replace(other.manifest, sha256="0" * 64)
    assert memory.load(msgspec.structs.replace(round_task(round=3), manifest=manifest), SHAPES) is None


def test_two_memories_are_on_disk_at_most(memory: OptimizerMemory, tmp_path: Path) -> None:
    for number in range(1, 6):
        memory.save(round_task(round=number), state(number))
        memory.save(msgspec.structs.replace(round_task(round=number), run="another"), state(number))
    assert len(list((tmp_path / "optimizer").iterdir())) <= 2


def test_a_damaged_memory_is_forgotten_with_a_word(
    memory: OptimizerMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory.save(round_task(round=1), state(1))
    (path,) = (tmp_path / "optimizer").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert found(memory, 2) is None
    assert "the optimizer's memory" in caplog.text
    assert "begins afresh" in caplog.text
    assert not path.exists()
