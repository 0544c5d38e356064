"""The model multiplies counted iterations by modelled cycles, and never by less than memory allows."""

from collections import Counter

import pytest

from sparsyedge.benchmarks.arm.boards import BOARDS
from sparsyedge.benchmarks.arm.model import LayerWork, modelled_s, read_cycles
from sparsyedge.edge.errors import ConfigError

KERNEL = "convolve 1x4 step 1 to 1"


def work(iterations: int, moved: int) -> LayerWork:
    return LayerWork("layer", {"conv_forward": Counter({(KERNEL, "run2"): iterations})}, {"conv_forward": moved})


def test_seconds_are_cycles_over_the_clock_and_bytes_over_the_bandwidth() -> None:
    seconds = modelled_s(work(1000, 4000), "conv_forward", {KERNEL: {"run2": 20.0}}, clock_ghz=2.0, memory_gb_s=4.0)
    assert seconds == pytest.approx((1e-5, 1e-6))


def test_a_loop_without_cycles_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no cycles of convolve 1x4 step 1 to 1, run2"):
        modelled_s(work(1, 1), "conv_forward", {KERNEL: {"run3": 20.0}}, clock_ghz=1.0, memory_gb_s=1.0)


def test_the_kept_cycles_cover_every_board_and_every_loop() -> None:
    cycles = read_cycles()
    for board in BOARDS:
        parts = {(kernel.split()[0], part) for kernel, of in cycles[board.core].items() for part in of}
        assert {("convolve", part) for part in ("visit", "run1", "run1x4", "run2", "run3")} <= parts
        assert {("grad_weight", part) for part in ("visit", "singles4", "singles8", "run2", "run3", "sums")} <= parts
