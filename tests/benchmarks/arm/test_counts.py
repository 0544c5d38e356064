"""Iterations are counted from a plan as the kernels walk it."""

import numpy as np
import pytest

from sparsyedge.benchmarks.arm.counts import KERNEL_SETS, KernelSet, convolve_counts, grad_weight_counts
from sparsyedge.benchmarks.arm.plan import FIELDS, HEADER, MAGIC, VERSION, Pass, read_plan
from sparsyedge.edge.errors import ConfigError

NEON, AVX2 = KERNEL_SETS["neon"], KERNEL_SETS["avx2"]
SHAPE = dict.fromkeys(FIELDS, 0) | {
    "positions_h": 8,
    "positions_w": 8,
    "step": 1,
    "dst_step": 1,
    "tile_h": 1,
    "tile_w": 4,
    "cell_h": 4,
    "row_parts": 1,
    "blocks": 1,
}
TILES = 16


def pass_of(*runs: tuple[int, int, int], **shape: int) -> Pass:
    return Pass(SHAPE | shape, np.array(runs, dtype=np.int32))


def test_neon_takes_single_taps_in_fours_and_the_rest_alone() -> None:
    counts = convolve_counts(pass_of((9, 2, 1), (3, 0, 0)), NEON)
    kernel = "convolve 1x4 step 1 to 1"
    expected = {"visit": 2, "run1": 1 + 3, "run1x4": 2, "run2": 2, "run3": 1}
    assert counts == {(kernel, part): TILES * count for part, count in expected.items()}


def test_avx2_takes_single_taps_one_by_one() -> None:
    counts = convolve_counts(pass_of((9, 0, 0)), AVX2)
    assert counts["convolve 1x4 step 1 to 1", "run1"] == TILES * 9
    assert ("convolve 1x4 step 1 to 1", "run1x4") not in counts


@pytest.mark.parametrize(
    ("singles", "eights", "fours"), [(0, 0, 0), (1, 0, 1), (4, 0, 1), (5, 1, 0), (8, 1, 0), (9, 1, 1), (13, 2, 0)]
)
def test_the_weight_gradient_takes_eight_taps_or_at_the_end_four(singles: int, eights: int, fours: int) -> None:
    counts = grad_weight_counts(pass_of((singles, 0, 0)), NEON)
    kernel = "grad_weight 1x4 step 1 to 1"
    assert (counts[kernel, "singles8"], counts[kernel, "singles4"]) == (TILES * eights, TILES * fours)


def test_stacked_tiles_share_visits_and_sums_but_not_runs() -> None:
    counts = grad_weight_counts(pass_of((0, 3, 1)), NEON)
    kernel = "grad_weight 1x4 step 1 to 1"
    assert counts[kernel, "visit"] == TILES // 2
    assert counts[kernel, "sums"] == TILES // 2 * 2  # nine weights, eight at a time
    assert counts[kernel, "run2"] == TILES * 3


def test_what_no_whole_tile_covers_takes_smaller_ones() -> None:
    counts = convolve_counts(pass_of((0, 1, 0), positions_h=1, positions_w=7), NEON)
    assert {kernel: count for (kernel, part), count in counts.items() if part == "run2"} == {
        "convolve 1x4 step 1 to 1": 1,
        "convolve 1x2 step 1 to 1": 1,
        "convolve 1x1 step 1 to 1": 1,
    }


@pytest.mark.parametrize("kernels", [NEON, AVX2])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 5), (1, 3)])
def test_every_weight_meets_every_position_once(kernels: KernelSet, height: int, width: int) -> None:
    one = pass_of((11, 3, 2), (2, 0, 1), (0, 5, 0), positions_h=height, positions_w=width)
    taps = {"run1": 1, "run1x4": 4, "run2": 2, "run3": 3}
    done = 0
    for (kernel, part), iterations in convolve_counts(one, kernels).items():
        tile_h, tile_w = map(int, kernel.split()[1].split("x"))
        done += iterations * taps.get(part, 0) * tile_h * tile_w
    assert done == (11 + 2 + 2 * (3 + 5) + 3 * (2 + 1)) * height * width


def test_a_plan_of_another_version_is_refused() -> None:
    plan = np.zeros(HEADER, dtype=np.int32)
    plan[:2] = MAGIC, VERSION + 1
    with pytest.raises(ConfigError, match="a plan begins with"):
        read_plan(plan)
