"""Sparse convolution at the edges: layers without weights, plans, NaN."""

from collections.abc import Callable

import numpy as np
import pytest
from fixtures.op_cases.case import Array, OpCase, to_lanes
from fixtures.op_cases.layers import LAYERS, Layer, case_of, dense

RunNode = Callable[..., list[Array]]
RunCase = Callable[[OpCase], dict[str, Array]]


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_layer_without_weights_gives_exact_zeros_and_passes_the_residual(run_case: RunCase, kernel: int) -> None:
    layer = Layer(8, 8, kernel, 2, 8, 8, density=0.0)
    results = run_case(case_of(layer))
    assert not results["y"].any()
    assert not results["dx"].any()
    assert results["dx_added"].tobytes() == to_lanes(dense(layer).residual, layer.halo).tobytes()
    assert results["dtheta_plain"].shape == (0,)


def test_the_plan_is_a_permutation_of_the_values(run_node: RunNode) -> None:
    for layer in LAYERS:
        index = dense(layer).kept
        _, order = run_node("SparsePlan", [index], outputs=2, **layer.attributes)
        assert sorted(order.tolist()) == list(range(len(index)))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_plan_of_a_layer_that_is_not_pruned_is_small(run_node: RunNode, stride: int) -> None:
    layer = Layer(64, 64, 3, stride, 16, 16, density=1.0)
    plan, order = run_node("SparsePlan", [dense(layer).kept], outputs=2, **layer.attributes)
    assert plan.size < order.size / 2


def test_a_nan_weight_reaches_the_outputs_that_use_it_and_no_other(run_node: RunNode) -> None:
    layer = Layer(4, 3, 3, 1, 8, 8, 0.5)
    data = dense(layer)
    plan, order = run_node("SparsePlan", [data.kept], outputs=2, **layer.attributes)
    theta = data.weight.reshape(-1)[data.kept]
    theta[0] = np.nan
    (y,) = run_node("SparseConv", [to_lanes(data.x, layer.halo), theta[order], plan])
    channel = data.kept[0] // (layer.ic * layer.kernel**2)
    assert np.isnan(y[:, channel]).any()
    assert not np.isnan(np.delete(y, channel, axis=1)).any()
