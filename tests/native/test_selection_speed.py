"""What finding the threshold of every layer's input costs a step, apart from packing; `make bench-kernels` shows it."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from fixtures.sparse_layers import Array, Case, to_lanes

from sparsyedge.benchmarks.step.profiles import PROFILES, sparsity_of

RunNode = Callable[..., list[Array]]

# Channels and size of the inputs of the layers of a ResNet-18 of width 64 on 32x32 images, by the layers' names.
INPUTS = {
    "conv1": (3, 32),
    **{f"layer1.{block}.conv{number}": (64, 32) for block in (0, 1) for number in (1, 2)},
    **{f"layer2.0.{name}": (64, 32) for name in ("conv1", "downsample.0")},
    **{f"layer2.{name}": (128, 16) for name in ("0.conv2", "1.conv1", "1.conv2")},
    **{f"layer3.0.{name}": (128, 16) for name in ("conv1", "downsample.0")},
    **{f"layer3.{name}": (256, 8) for name in ("0.conv2", "1.conv1", "1.conv2")},
    **{f"layer4.0.{name}": (256, 8) for name in ("conv1", "downsample.0")},
    **{f"layer4.{name}": (512, 4) for name in ("0.conv2", "1.conv1", "1.conv2")},
}


def best_ms(*steps: Callable[[], object], repeat: int = 9) -> list[float]:
    """The least milliseconds of each step; they take turns."""
    best = [np.inf] * len(steps)
    for _ in range(repeat):
        for number, step in enumerate(steps):
            start = time.perf_counter()
            step()
            best[number] = min(best[number], time.perf_counter() - start)
    return [1e3 * seconds for seconds in best]


def select_and_pack_ms(run_node: RunNode, channels: int, size: int, density: float) -> tuple[float, float, bool]:
    """Packing is what it takes to save an input whose threshold is known; selecting is what comes on top.

    Last, whether both ways save the same bits.
    """
    case = Case(8, channels, 3, 1, size, size, density)
    index = np.arange(round(density * 8 * channels * 9), dtype=np.int32)
    plan, _ = run_node("SparsePlan", [index], outputs=2, **case.attributes)
    rng = np.random.default_rng(size)
    x = to_lanes(np.maximum(rng.standard_normal((16, channels, size, size), dtype=np.float32), 0), case.halo)
    inputs = [x, plan, np.array([16])]
    saved, tau = run_node("SaveActivation", inputs, outputs=2)
    again = run_node("SaveActivation", [*inputs, None, tau])
    both, packing = best_ms(
        lambda: run_node("SaveActivation", inputs),
        lambda: run_node("SaveActivation", [*inputs, None, tau]),
    )
    return max(0.0, both - packing), packing, np.array_equal(again[0], saved)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["trained95", "paperlike", "uniform95", "uniform99"])
def test_a_threshold_that_is_known_saves_the_same_bits_without_the_cost_of_selecting(
    run_node: RunNode, profile: str
) -> None:
    costs = [
        select_and_pack_ms(run_node, channels, size, 1 - sparsity_of(name, PROFILES[profile]))
        for name, (channels, size) in INPUTS.items()
    ]
    assert all(same for _, _, same in costs)
    selecting, packing = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
    print(f"{profile:<10} a step selects for {selecting:5.2f} ms and packs for {packing:5.2f} ms")
