"""The figures of a round, on states small enough to work them out by hand."""

from __future__ import annotations

import csv
import io
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fixtures.dense_way import average, distance

from sparsyedge.coordinator.aggregation.measures import measure as measure_update
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.record.metrics import figures_of_round, iou_matrix, of_evaluation, pack_mask
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import ClosedRound, Store
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import State, count_nonzero, count_regrown
from sparsyedge.edge.wire.flat_frame import flatten


def with_weights(initial: State, values: dict[int, float]) -> State:
    """The state with these entries of fc.weight, and zeros elsewhere in it."""
    weight = np.zeros(initial["fc.weight"].size, dtype=np.float32)
    for place, value in values.items():
        weight[place] = value
    return {**initial, "fc.weight": weight.reshape(initial["fc.weight"].shape)}


def measure(manifest: Manifest, initial: State, start: State, updates: list[State]) -> tuple[dict[str, float], State]:
    layout = layout_of(manifest)
    begun, base = (RoundBase(manifest, layout, state) for state in (initial, start))
    measured = []
    for state in updates:
        update = flatten(state, layout)
        near = base.near(update)
        measured.append(measure_update(update, base, base.products(update, near)[0], near))
    state = average((1, update) for update in updates)
    return figures_of_round(flatten(state, layout), initial=begun, start=base, measured=measured), state


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


@pytest.mark.parametrize("density", [0.02, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("base_density", [0.05, 1.0])
@pytest.mark.parametrize("moved", [1e-6, 0.02, 1.0])
def test_every_figure_is_that_of_dense_tensors(
    manifest: Manifest, initial: State, density: float, base_density: float, moved: float
) -> None:
    rng = np.random.default_rng(5)

    def thinned(state: State, share: float) -> State:
        kept = rng.random(state["fc.weight"].shape) < share
        return {**state, "fc.weight": np.where(kept, state["fc.weight"], 0).astype(np.float32)}

    start = thinned(initial, base_density)
    updates = []
    for _ in range(3):
        noisy = {
            name: (each * (1 + moved * rng.standard_normal(each.shape))).astype(np.float32)
            for name, each in start.items()
        }
        updates.append(thinned(noisy, density))
    figures, state = measure(manifest, initial, start, updates)
    trained = [parameter.name for parameter in manifest.parameters if parameter.trainable]
    for name, first in (("global", initial), ("round", start)):
        l2, cosine = distance(first, state, trained)
        assert figures[f"l2_{name}"] == pytest.approx(l2, rel=1e-9)
        assert figures[f"cosine_{name}"] == pytest.approx(cosine, rel=1e-9)
    moves = [distance(start, update, trained) for update in updates]
    assert figures["l2_device_mean"] == pytest.approx(np.mean([l2 for l2, _ in moves]), rel=1e-9)
    assert figures["cosine_device_min"] == pytest.approx(min(cosine for _, cosine in moves), rel=1e-9)
    assert figures["nonzeros_device"] == np.mean([count_nonzero(update, ["fc.weight"]) for update in updates])
    assert figures["regrown_global"] == count_regrown(start, state, ["fc.weight"])


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
