"""Updates that would move the model too far."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsyedge.coordinator.norms import FACTOR, NORMS_NAME, NormGuard, measure
from sparsyedge.edge.artifacts import Manifest
from sparsyedge.edge.errors import FrameError, RunError
from sparsyedge.edge.tensors import State


def moved(base: State, distance: float, *, tensor: str = "fc.weight") -> State:
    """The base with one tensor moved by `distance` times the norm of all that is trained."""
    trained = [value for name, value in base.items() if "running" not in name]
    norm = np.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in trained))
    step = distance * norm / np.sqrt(base[tensor].size)
    return {**base, tensor: (base[tensor] + step).astype(np.float32)}


class Round:
    """The updates of one round, by device."""

    def __init__(self, guard: NormGuard, base: State, number: int) -> None:
        self.guard, self.base, self.number = guard, base, number
        self.states: dict[str, State] = {}

    def send(self, device: str, state: State) -> None:
        self.guard.check(f"{self.number} {device}", state, self.base, round_number=self.number)
        self.states[device] = state

    def close(self) -> dict[str, str]:
        updates = {device: f"{self.number} {device}" for device in self.states}
        return self.guard.close(updates, self.states.__getitem__, base=self.base, round_number=self.number)


def test_an_update_is_measured_in_units_of_the_model(initial: State, manifest: Manifest) -> None:
    assert measure(moved(initial, 0.25), initial, manifest).weights == pytest.approx(0.25, rel=1e-3)
    assert measure(initial, initial, manifest).statistics == pytest.approx(1.0)


def played(guard: NormGuard, base: State, number: int, *distances: float) -> Round:
    """A round to which pi-0, pi-1, ... have sent updates of these distances."""
    opened = Round(guard, base, number)
    for index, distance in enumerate(distances):
        opened.send(f"pi-{index}", moved(base, distance))
    return opened


def test_an_update_far_beyond_its_peers_and_the_round_before_is_refused_on_arrival(
    tmp_path: Path, initial: State, manifest: Manifest
) -> None:
    guard = NormGuard(tmp_path, manifest)
    assert played(guard, initial, 1, 0.1, 0.2, 0.3).close() == {}
    second = played(guard, initial, 2, 0.2, 0.2, 0.2)
    second.send("pi-3", moved(initial, 0.2 * FACTOR * 0.95))
    with pytest.raises(FrameError, match=r"moves the weights by 2\.1 times .* of its peers is 0\.2"):
        second.send("pi-4", moved(initial, 0.2 * FACTOR * 1.05))
    with pytest.raises(FrameError, match="BatchNorm statistics"):
        second.send("pi-5", {**initial, "bn.running_mean": np.full(4, 1e30, dtype=np.float32)})


def test_a_fleet_that_moves_further_than_in_the_round_before_is_not_refused(
    tmp_path: Path, initial: State, manifest: Manifest
) -> None:
    guard = NormGuard(tmp_path, manifest)
    assert played(guard, initial, 1, 0.1, 0.1, 0.1, 0.1).close() == {}
    grown = {**moved(initial, 20.0), "bn.running_var": np.full(4, 500.0, dtype=np.float32)}
    second = Round(guard, initial, 2)
    for device in ("pi-0", "pi-1", "pi-2", "pi-3"):
        second.send(device, grown)
    assert second.close() == {}


def test_the_first_to_arrive_cannot_have_the_others_refused(tmp_path: Path, initial: State, manifest: Manifest) -> None:
    guard = NormGuard(tmp_path, manifest)
    assert played(guard, initial, 1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2).close() == {}
    second = played(guard, initial, 2, 0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2)
    assert second.close() == {}


def test_the_first_round_is_judged_when_it_closes(tmp_path: Path, initial: State, manifest: Manifest) -> None:
    first = Round(NormGuard(tmp_path, manifest), initial, 1)
    for device, distance in {"pi-0": 0.1, "pi-1": 50.0, "pi-2": 0.2, "pi-3": 0.15}.items():
        first.send(device, moved(initial, distance))
    refused = first.close()
    assert list(refused) == ["pi-1"]
    assert "of its peers" in refused["pi-1"]


def test_what_was_left_out_is_no_measure_for_the_next_round(tmp_path: Path, initial: State, manifest: Manifest) -> None:
    guard = NormGuard(tmp_path, manifest)
    first = Round(guard, initial, 1)
    for index, distance in enumerate((0.1, 0.1, 0.1, 90.0, 90.0)):
        first.send(f"pi-{index}", moved(initial, distance))
    assert sorted(first.close()) == ["pi-3", "pi-4"]
    with pytest.raises(FrameError):
        played(guard, initial, 2, 0.1, 0.1, 0.1, 90.0)


def test_two_devices_are_not_played_off_against_each_other(tmp_path: Path, initial: State, manifest: Manifest) -> None:
    guard = NormGuard(tmp_path, manifest)
    for number in (1, 2, 3):
        pair = Round(guard, initial, number)
        pair.send("pi-0", moved(initial, 0.01))
        pair.send("pi-1", moved(initial, 30.0))
        assert pair.close() == {}


def test_where_nobody_moves_the_model_a_small_step_is_no_attack(
    tmp_path: Path, initial: State, manifest: Manifest
) -> None:
    guard = NormGuard(tmp_path, manifest)
    first = Round(guard, initial, 1)
    for device in ("pi-0", "pi-1", "pi-2"):
        first.send(device, initial)
    first.send("pi-3", moved(initial, 0.009))
    assert first.close() == {}


def test_a_coordinator_that_was_killed_decides_the_same_again(
    tmp_path: Path, initial: State, manifest: Manifest
) -> None:
    first = Round(NormGuard(tmp_path, manifest), initial, 1)
    for device, distance in {"pi-0": 0.1, "pi-1": 50.0, "pi-2": 0.2, "pi-3": 0.15}.items():
        first.send(device, moved(initial, distance))
    refused = first.close()
    reference = (tmp_path / NORMS_NAME).read_bytes()
    # Another process: it has measured nothing and reads the updates from disk.
    first.guard = NormGuard(tmp_path, manifest)
    assert first.close() == refused
    assert (tmp_path / NORMS_NAME).read_bytes() == reference
    with pytest.raises(FrameError):
        played(NormGuard(tmp_path, manifest), initial, 2, 0.1, 0.1, 0.1, 50.0)


def test_numbers_that_overflow_are_larger_than_all_others(tmp_path: Path, initial: State, manifest: Manifest) -> None:
    huge = {**initial, "fc.weight": np.full_like(initial["fc.weight"], 3e38)}
    first = Round(NormGuard(tmp_path, manifest), initial, 1)
    for device, state in {"pi-0": initial, "pi-1": initial, "pi-2": initial, "pi-3": huge}.items():
        first.send(device, state)
    assert list(first.close()) == ["pi-3"]
    second = Round(NormGuard(tmp_path / "of huge ones", manifest), initial, 1)
    for device in ("pi-0", "pi-1", "pi-2"):
        second.send(device, huge)
    second.close()
    NormGuard(tmp_path / "of huge ones", manifest)


def test_norms_that_cannot_be_read_stop_the_run_with_a_sentence(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / NORMS_NAME).write_text("{")
    with pytest.raises(RunError, match="remove it to go on"):
        NormGuard(tmp_path, manifest)
