"""SaveActivation at the edges, against sorting and the byte layout of edge/native/kernels/saved.h."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from fixtures.op_cases.case import Array, to_lanes

RunNode = Callable[..., list[Array]]

MAGIC = 0x56415345
PLAIN, MASKED = 0, 1
WEIGHTS = 1000  # per input channel, in every layer here


def oracle(x: Array, nonzeros: int, weights: int) -> tuple[Array, float]:
    """The pruned images and tau. NaN ranks above infinity."""
    if nonzeros == weights:
        return x, 0.0
    k = max(1, ceil(Fraction(nonzeros, weights) * x.size))
    order = np.sort(np.where(np.isnan(x), np.nan, np.abs(x)), axis=None)  # NaN last
    tau = float(order[x.size - k])
    if np.isnan(tau):
        return np.where(np.isnan(x), x, np.float32(0)), tau
    return np.where((np.abs(x) >= tau) | np.isnan(x), x, np.float32(0)), tau


def without_signed_zeros(x: Array) -> Array:
    return np.where(x == 0, np.float32(0), x)


def decode(saved: Array) -> tuple[Array, int]:
    """The lanes tensor inside the bytes, and its encoding."""
    magic, encoding, groups, channels, height, width, halo, count = saved[:32].view(np.int32).tolist()
    assert magic == MAGIC
    padded = (groups, channels, height + 2 * halo, width + 2 * halo, 16)
    if encoding == PLAIN:
        return saved[64:].view(np.float32).reshape(padded), encoding
    rows = groups * channels * height
    mask_at = 64 + -(-(rows + 1) * 4 // 64) * 64
    values_at = mask_at + -(-rows * width * 2 // 64) * 64
    row_start = saved[64 : 64 + (rows + 1) * 4].view(np.uint32)
    mask = saved[mask_at : mask_at + rows * width * 2].reshape(-1, 2)
    values = saved[values_at:].view(np.float32)
    assert len(values) == count == row_start[-1]
    bits = np.unpackbits(mask, axis=-1, bitorder="little").astype(bool)
    assert np.array_equal(np.diff(row_start), bits.reshape(rows, -1).sum(1))
    planes = np.zeros((rows * width, 16), np.float32)
    planes[bits] = values
    lanes = np.zeros(padded, np.float32)
    lanes[:, :, halo : halo + height, halo : halo + width] = planes.reshape(groups, channels, height, width, 16)
    return lanes, encoding


@pytest.fixture(scope="module")
def save(run_node: RunNode) -> Callable[..., tuple[Array, Array]]:
    """save(images, nonzeros, weights=WEIGHTS, ...) returns the bytes and tau."""

    def run(x: Array, nonzeros: int, weights: int = WEIGHTS, halo: int = 1) -> tuple[Array, Array]:
        channels, height, width = x.shape[1:]
        geometry = {"oc": weights, "ic": channels, "kernel_h": 1, "kernel_w": 1, "stride": 1, "pad": 0}
        planes = {"in_h": height, "in_w": width, "pad_in": halo, "pad_out": 0, "grad_input": 1}
        index = np.arange(nonzeros * channels, dtype=np.int32)
        plan, _ = run_node("SparsePlan", [index], 2, **geometry, **planes)
        n = np.array([len(x)], np.int64)
        saved, tau = run_node("SaveActivation", [to_lanes(x, halo), plan, n], 2)
        return saved, tau

    return run


Save = Callable[..., tuple[Array, Array]]


def assert_saved(result: tuple[Array, Array], x: Array, nonzeros: int, weights: int = WEIGHTS, halo: int = 1) -> int:
    """Asserts that the bytes hold what sorting gives, with +0 for every zero; returns the encoding."""
    saved, tau = result
    pruned, expected_tau = oracle(x, nonzeros, weights)
    lanes, encoding = decode(saved)
    assert without_signed_zeros(lanes).tobytes() == without_signed_zeros(to_lanes(pruned, halo)).tobytes()
    assert np.array_equal(tau, np.array([expected_tau], np.float32), equal_nan=True)
    return encoding


def activations(*shape: int, seed: int = 1, offset: float = 0.0) -> Array:
    """The output of a ReLU."""
    x = np.random.default_rng(seed).standard_normal(shape) + offset
    return np.maximum(x, 0).astype(np.float32)


@pytest.mark.parametrize("nonzeros", [20, 500, 960, 1000])
@pytest.mark.parametrize("halo", [0, 1, 3])
def test_signs_and_halos_are_kept(save: Save, nonzeros: int, halo: int) -> None:
    x = np.random.default_rng(2).standard_normal((16, 8, 16, 16)).astype(np.float32)
    assert_saved(save(x, nonzeros, halo=halo), x, nonzeros, halo=halo)


def test_the_smaller_encoding_is_taken(save: Save) -> None:
    dense = np.random.default_rng(3).standard_normal((16, 8, 16, 16)).astype(np.float32)
    sparse = activations(16, 8, 16, 16)
    assert assert_saved(save(dense, 1000, halo=0), dense, 1000, halo=0) == PLAIN
    assert assert_saved(save(dense, 500, halo=0), dense, 500, halo=0) == MASKED
    assert assert_saved(save(sparse, 1000, halo=0), sparse, 1000, halo=0) == MASKED
    kept = np.count_nonzero(oracle(dense, 500, 1000)[0])
    assert len(save(dense, 500, halo=0)[0]) < 4 * kept + dense.size / 8 + 8 * 16 * 4 + 300


@pytest.mark.parametrize("weights", [3, 7, 49, 1000])
def test_share_of_elements_is_exact(save: Save, weights: int) -> None:
    x = np.arange(1, 16 * 49 * 3 + 1, dtype=np.float32).reshape(16, 3, 7, 7)
    for nonzeros in {1, weights // 2, weights - 1}:
        assert_saved(save(x, nonzeros, weights), x, nonzeros, weights)


def with_plan(run_node: RunNode, x: Array, nonzeros: int) -> list[Array | None]:
    """SaveActivation's first three inputs, for a layer with this many non-zeros per input channel."""
    channels, height, width = x.shape[1:]
    geometry = {"oc": WEIGHTS, "ic": channels, "kernel_h": 1, "kernel_w": 1, "stride": 1, "pad": 0}
    planes = {"in_h": height, "in_w": width, "pad_in": 1, "pad_out": 0, "grad_input": 1}
    plan, _ = run_node("SparsePlan", [np.arange(nonzeros * channels, dtype=np.int32)], 2, **geometry, **planes)
    return [to_lanes(x, 1), plan, np.array([len(x)], np.int64)]


@pytest.mark.parametrize(("nonzeros", "kept"), [(0, 20), (3, 20), (19, 20), (21, 21), (500, 500)])
def test_least_share_is_saved_however_few_weights_are_left(run_node: RunNode, nonzeros: int, kept: int) -> None:
    x = np.random.default_rng(5).standard_normal((16, 8, 16, 16)).astype(np.float32)
    saved, tau = run_node("SaveActivation", with_plan(run_node, x, nonzeros), 2, least=200)
    assert_saved((saved, tau), x, kept)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.5, 100.0])
def test_threshold_of_an_earlier_step_is_taken_over_and_handed_on(run_node: RunNode, tau: float) -> None:
    x = np.random.default_rng(6).standard_normal((17, 8, 16, 16)).astype(np.float32)
    before = np.array([tau], np.float32)
    saved, after = run_node("SaveActivation", [*with_plan(run_node, x, 50), None, before], 2)
    pruned = np.where(np.abs(x) >= tau, x, np.float32(0))
    assert without_signed_zeros(decode(saved)[0]).tobytes() == to_lanes(pruned, 1).tobytes()
    assert after == before


def test_threshold_is_found_where_there_is_none_yet_and_the_layer_is_pruned(run_node: RunNode) -> None:
    x = np.random.default_rng(7).standard_normal((16, 8, 16, 16)).astype(np.float32)
    none = np.array([-1], np.float32)
    pruned, dense = (
        run_node("SaveActivation", [*with_plan(run_node, x, count), np.ones(count * 8, np.float32), none], 2)
        for count in (50, WEIGHTS)
    )
    assert_saved((pruned[0], pruned[1]), x, 50)
    # An unpruned layer sets no threshold.
    assert dense[1] == none
    assert np.array_equal(decode(dense[0])[0], to_lanes(x, 1))


@pytest.mark.parametrize("nonzeros", [1, 100, 250, 260, 500, 740, 760])
def test_ties_at_the_threshold_are_all_kept(save: Save, nonzeros: int) -> None:
    x = np.random.default_rng(4).choice([-1.0, 0.0, 1.0, 2.0], (16, 32, 16, 16)).astype(np.float32)
    assert_saved(save(x, nonzeros), x, nonzeros)


@pytest.mark.parametrize("shape", [(16, 32, 16, 16), (2, 1, 3, 3)])
def test_zeros_stay_as_they_are(save: Save, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    x[::2] = -0.0
    saved, tau = save(x, 5)
    assert decode(saved)[0].shape == to_lanes(x, 1).shape
    assert not decode(saved)[0].any()
    assert tau == 0


def test_neighbouring_floats_are_told_apart(save: Save) -> None:
    keys = np.arange(16 * 64 * 64, dtype=np.uint32) + np.float32(1.0).view(np.uint32)
    x = np.random.default_rng(5).permutation(keys).view(np.float32).reshape(16, 1, 64, 64)
    for nonzeros in (1, 123, 777):
        assert_saved(save(x, nonzeros), x, nonzeros)


@pytest.mark.parametrize("nonzeros", [1, 30, 500])
def test_nan_and_infinity_rank_on_top(save: Save, nonzeros: int) -> None:
    x = activations(16, 16, 16, 16)
    flat = x.reshape(-1)
    flat[:40] = np.array([0x7FC00000, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF] * 10, np.uint32).view(np.float32)
    flat[40:50] = -np.inf
    assert_saved(save(x, nonzeros), x, nonzeros)


def test_more_nan_than_the_share_are_all_kept(save: Save) -> None:
    x = activations(16, 16, 16, 16)
    x[:8] = np.nan
    x[8:, 0] = np.array([0xFFFFFFFF], np.uint32).view(np.float32)
    assert_saved(save(x, 300), x, 300)


def test_a_tensor_that_misleads_every_sample_gives_the_exact_threshold(save: Save) -> None:
    """All large values sit in one place."""
    x = np.full((16, 64, 32, 32), 1e-3, np.float32)
    x[3, 7] = np.random.default_rng(6).standard_normal((32, 32))
    x[:, 60:] = 1e-30
    for nonzeros in (1, 2, 600, 938, 990):
        assert_saved(save(x, nonzeros), x, nonzeros)


def test_a_share_of_the_node_overrides_that_of_the_weights(run_node: RunNode) -> None:
    geometry = {"oc": 2, "ic": 4, "kernel_h": 1, "kernel_w": 1, "stride": 1, "pad": 0}
    planes = {"in_h": 8, "in_w": 8, "pad_in": 1, "pad_out": 0, "grad_input": 1}
    plan, _ = run_node("SparsePlan", [np.arange(8, dtype=np.int32)], 2, **geometry, **planes)
    x = activations(5, 4, 8, 8)
    inputs = [to_lanes(x, 1), plan, np.array([5], np.int64)]
    for kept, of in ((1, 20), (3, 7), (1, 1)):
        saved, tau = run_node("SaveActivation", inputs, 2, kept=kept, of=of)
        assert_saved((saved, tau), x, kept, of)


def test_a_tensor_that_the_plan_was_not_made_for_is_refused(run_node: RunNode) -> None:
    geometry = {"oc": 2, "ic": 3, "kernel_h": 1, "kernel_w": 1, "stride": 1, "pad": 0}
    planes = {"in_h": 4, "in_w": 5, "pad_in": 1, "pad_out": 0, "grad_input": 1}
    plan, _ = run_node("SparsePlan", [np.arange(4, dtype=np.int32)], 2, **geometry, **planes)
    x, n = np.zeros((1, 3, 6, 6, 16), np.float32), np.array([3], np.int64)
    with pytest.raises(Exception, match=r"SaveActivation: x has shape \[1,3,6,6,16\], .* \[1,3,6,7,16\]"):
        run_node("SaveActivation", [x, plan, n], 2)
    with pytest.raises(Exception, match="SaveActivation: plan"):
        run_node("SaveActivation", [x, np.zeros(3, np.int32), n], 2)
