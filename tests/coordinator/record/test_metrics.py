"""The figures of a round, on states small enough to work them out by hand."""

from __future__ import annotations

import csv
import io
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.coordinator.aggregation.mean import average
from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.record.metrics import RoundMetrics, distance, iou_matrix, of_evaluation, pack_mask
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import ClosedRound, Store
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import State, count_regrown


def with_weights(initial: State, values: dict[int, float]) -> State:
    """The state with these entries of fc.weight, and zeros elsewhere in it."""
    weight = np.zeros(initial["fc.weight"].size, dtype=np.float32)
    for place, value in values.items():
        weight[place] = value
    return {**initial, "fc.weight": weight.reshape(initial["fc.weight"].shape)}


def measure(manifest: Manifest, initial: State, start: State, updates: list[State]) -> tuple[dict[str, float], State]:
    metrics = RoundMetrics(manifest, initial=initial, start=start)
    state = average(metrics.watch((1, update) for update in updates))
    return metrics.finish(state), state


def test_a_mask_that_only_shrinks_is_nested_and_nothing_is_regrown(manifest: Manifest, initial: State) -> None:
    start = with_weights(initial, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    figures, _ = measure(
        manifest, initial, start, [with_weights(initial, {0: 1.0, 1: 1.0}), with_weights(initial, {1: 1.0, 2: 1.0})]
    )
    assert figures["regrown_global"] == 0
    assert figures["nestedness"] == 1
    assert figures["mask_iou"] == pytest.approx(3 / 4)
    assert figures["nonzeros_device"] == 2
    assert figures["mask_agreement"] == pytest.approx(2 / 3)


def test_weights_that_come_back_are_counted(manifest: Manifest, initial: State) -> None:
    start = with_weights(initial, {0: 1.0, 1: 2.0})
    figures, _ = measure(manifest, initial, start, [with_weights(initial, {1: 1.0, 7: 1.0, 8: 1.0})])
    assert figures["regrown_global"] == 2
    assert figures["nestedness"] == pytest.approx(1 / 3)
    assert figures["mask_iou"] == pytest.approx(1 / 4)


def test_sparsity_is_told_of_prunable_weights_of_all_and_of_each_layer(manifest: Manifest, initial: State) -> None:
    figures, state = measure(manifest, initial, initial, [with_weights(initial, {0: 1.0})])
    weights = initial["fc.weight"].size
    assert figures["sparsity_prunable"] == figures["sparsity/fc.weight"] == pytest.approx(1 - 1 / weights)
    trained = [parameter.name for parameter in manifest.parameters if parameter.trainable]
    zeros = sum(int(np.count_nonzero(state[name] == 0)) for name in trained)
    assert figures["sparsity_all"] == pytest.approx(zeros / sum(state[name].size for name in trained))


def test_distances_are_means_over_tensors_and_skip_cosines_of_nothing() -> None:
    first = {"a": np.array([3.0, 4.0], dtype=np.float32), "b": np.zeros(2, dtype=np.float32)}
    second = {"a": np.array([-3.0, -4.0], dtype=np.float32), "b": np.array([0.0, 2.0], dtype=np.float32)}
    l2, cosine = distance(first, second, ["a", "b"])
    assert l2 == pytest.approx((10 + 2) / 2)
    assert cosine == pytest.approx(-1)
    assert math.isnan(distance(first, second, ["b"])[1])


def test_devices_that_move_differently_show_in_the_spread(manifest: Manifest, initial: State) -> None:
    moved = {**initial, "fc.bias": initial["fc.bias"] + np.float32(3.0)}
    figures, _ = measure(manifest, initial, initial, [initial, moved])
    assert figures["l2_device_min"] == 0
    assert figures["l2_device_max"] > 0
    assert figures["l2_device_mean"] == pytest.approx(figures["l2_device_max"] / 2)
    assert figures["l2_device_std"] == pytest.approx(figures["l2_device_max"] / 2)


def test_regrowth_counts_only_what_was_exactly_zero() -> None:
    before = {"w": np.array([0.0, -0.0, 1e-30, 2.0], dtype=np.float32)}
    after = {"w": np.array([1.0, 1.0, 1.0, 0.0], dtype=np.float32)}
    assert count_regrown(before, after, ["w"]) == 2


def test_overlaps_of_masks_are_symmetric_and_one_with_themselves(initial: State) -> None:
    masks = [
        pack_mask(with_weights(initial, dict.fromkeys(places, 1.0)), ["fc.weight"])
        for places in ([0, 1], [1, 2], [5, 6, 7])
    ]
    overlap = iou_matrix(masks)
    assert overlap == pytest.approx(overlap.T)
    assert np.diag(overlap) == pytest.approx(1)
    assert overlap[0, 1] == pytest.approx(1 / 3)
    assert overlap[0, 2] == 0


def test_masks_on_disk_come_back_in_order_of_rounds(tmp_path: Path) -> None:
    masks = MaskFiles(tmp_path, rounds=700)
    wanted = [number for number in range(1, 701) if masks.wants(number)]
    assert wanted[-1] == 700
    assert len(wanted) <= 101
    for number in (14, 700, 7):
        masks.save(number, bytes([number % 256]))
    assert masks.load() == {7: b"\x07", 14: b"\x0e", 700: bytes([700 % 256])}


def test_csv_has_a_line_per_closed_round_and_a_column_per_figure(tmp_path: Path) -> None:
    with closing(
        Store.create(tmp_path, name="run", fleet="f", rounds=2, dense_bytes=4, artifacts_id="0" * 64, config="{}")
    ) as store:
        for number, evaluation in (
            (1, None),
            (2, Evaluation(0.5, 1.5, by_class=(0.25, math.nan), by_device=(0.25, 0.75))),
        ):
            store.open_round(number, base="b" * 64, base_nonzeros=1, learning_rate=0.1, cohort=("a",))
            closed = ClosedRound(
                round=number,
                model_id="m" * 64,
                seconds=1.0,
                global_sparsity=0.5,
                evaluation=evaluation,
                metrics={"mask_iou": 0.25 * number} | of_evaluation(evaluation),
            )
            store.close_round(closed)
        rows = list(csv.DictReader(io.StringIO(as_csv(store))))
    assert [row["round"] for row in rows] == ["1", "2"]
    assert [row["mask_iou"] for row in rows] == ["0.25", "0.5"]
    assert [row["test_accuracy"] for row in rows] == ["", "0.5"]
    assert [row["accuracy_class/0"] for row in rows] == ["", "0.25"]
    assert [row["accuracy_devices_mean"] for row in rows] == ["", "0.5"]
