"""Timing in turns, the comparison of losses, and the parts of a profile."""

from __future__ import annotations

from typing import Any

import pytest

from sparsyedge.benchmarks.step.measure import WARM_UP, compare_losses, measure
from sparsyedge.benchmarks.step.phases import split


class Recorder:
    """A contestant that writes down when it was asked to step."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    def step(self) -> float:
        self._calls.append(self._name)
        return float(len(self._calls))


def test_contestants_warm_up_and_then_take_turns_with_another_one_first() -> None:
    calls: list[str] = []
    timings = measure({name: Recorder(name, calls) for name in "abc"}, steps=3)
    warm_up, turns = calls[: 3 * WARM_UP], calls[3 * WARM_UP :]
    assert "".join(warm_up) == "aabbcc"
    assert "".join(turns) == "abc" + "bca" + "cab"
    assert all(len(timing.seconds) == 3 and timing.min_ms <= timing.median_ms for timing in timings.values())
    assert timings["b"].losses == [3.0, 4.0]


def test_equal_losses_give_no_warning() -> None:
    assert compare_losses({"a": [2.0, 1.0], "b": [2.0001, 1.0005], "dense": [2.0, 3.0]}, method=["a", "b"]) == []
    assert compare_losses({}, method=[]) == []


@pytest.mark.parametrize("losses", [[2.001, 1.0], [2.0, 1.01], [float("nan"), 1.0], [2.0, float("nan")]])
def test_another_loss_gives_one_warning_that_names_the_contestant(losses: list[float]) -> None:
    (warning,) = compare_losses({"ours": losses, "a": [2.0, 1.0], "b": [2.0, 1.0]}, method=["ours", "a", "b"])
    assert warning.startswith("WARNING: ours has loss")


def test_a_profile_is_split_by_op_without_the_warm_up_runs() -> None:
    events: list[dict[str, Any]] = []
    for run, scale in enumerate((50, 20, 1, 1, 1)):
        start = run * 100_000
        events.append({"name": "model_run", "ts": start, "dur": 10_000})
        kernels = [("SparseConv", 1000), ("SparseConv", 2000), ("PowerProp", 500), ("Shape", 9)]
        events += [
            {"name": f"n{at}_kernel_time", "ts": start + at, "dur": scale * us, "args": {"op_name": operator}}
            for at, (operator, us) in enumerate(kernels)
        ]
    parts = split(events)
    assert parts["conv_forward"] == 3.0
    assert parts["update"] == 0.5
    assert parts["grad_weight"] == 0.0
    assert list(parts)[-1] == "other"
    assert sum(parts.values()) == pytest.approx(10.0)
