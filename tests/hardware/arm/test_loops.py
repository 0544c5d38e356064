"""Loops are found in a disassembly, and each loop of the convolution gets its name."""

import pytest

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm.kernel_loops import convolution_loops
from sparsyedge.hardware.arm.loops import AVX2, NEON, Function, Loop, find_functions

LISTING = """
0000000000000000 <void sparsyedge::kernels::neon::(anonymous namespace)::ConvolveTile<sparsyedge::kernels::neon::\
(anonymous namespace)::Tile<1, 4, 2, 1> >(sparsyedge::kernels::neon::(anonymous namespace)::Lists const&)>:
   0:\tmov\tx3, #0x0                   \t// #0
   4:\tldr\tq0, [x1], #16
   8:\tfmla\tv1.4s, v0.4s, v2.s[0]
   c:\tfmla\tv3.4s, v0.4s, v2.s[1]
  10:\tstr\tq3, [sp, #32]
  14:\tcmp\tx1, x2
  18:\tb.ne\t4 <kernel+0x4>  // b.any
  1c:\tadd\tx3, x3, #0x1
  20:\tcbnz\tx3, 0 <kernel>
  24:\tret
"""


def test_only_the_innermost_loop_counts_with_its_branch() -> None:
    (function,) = find_functions(LISTING, NEON)
    (loop,) = function.loops
    assert (len(loop.body), loop.fused, loop.stack, loop.multiply_adds) == (6, 2, 1, 8)
    assert loop.body[0] == "ldr q0, [x1], #16"
    assert loop.body[-1] == "b.ne top"


def test_the_rest_of_a_function_is_what_no_loop_has() -> None:
    (function,) = find_functions(LISTING, NEON)
    assert function.rest.body == ("mov x3, #0x0", "add x3, x3, #0x1", "cbnz x3, top", "ret")


def test_a_function_goes_by_its_name_and_tile() -> None:
    (function,) = find_functions(LISTING, NEON)
    assert function.name == "ConvolveTile<Tile<1,4,2,1>>"


def test_code_without_a_backward_branch_has_no_loop() -> None:
    straight = LISTING.replace("4 <kernel+0x4>", "24 <kernel+0x24>").replace("0 <kernel>", "")
    assert find_functions(straight, NEON) == []


def test_x86_loops_are_found_in_the_same_way() -> None:
    listing = """
0000000000000000 <sparsyedge::kernels::avx2::NormSums(unsigned long)>:
   0:\tvfmadd231ps (%rax),%ymm1,%ymm2
   5:\tvmovaps %ymm2,0x20(%rsp)
   9:\tjne    0 <sparsyedge::kernels::avx2::NormSums(unsigned long)>
   b:\tret
"""
    (function,) = find_functions(listing, AVX2)
    (loop,) = function.loops
    assert (function.name, loop.multiply_adds, loop.stack) == ("NormSums", 8, 1)
    assert loop.body[-1] == "jne    top"


def tile_loop(fused: int) -> Loop:
    return Loop(("nop",) * fused, fused, 0, NEON.lanes)


def function_of(name: str, *fused: int) -> Function:
    return Function(name, tuple(tile_loop(count) for count in fused), tile_loop(0))


def test_each_loop_is_named_by_how_many_tiles_it_multiplies() -> None:
    functions = [
        function_of("ConvolveTile<Tile<1,4,1,1>>", 16, 32, 48),
        function_of("ConvolveTile<Tile<2,2,1,1>>", 16),
        function_of("GradWeightTiles<Tile<1,4,1,1>>", 128, 64, 32, 48, 0, 32, 48),
    ]
    loops = {(one.kernel, one.part): len(one.codes) for one in convolution_loops(functions, (1, 4))}
    convolve, gradient = "convolve 1x4 step 1 to 1", "grad_weight 1x4 step 1 to 1"
    assert loops == {
        **dict.fromkeys([(convolve, part) for part in ("visit", "run1", "run2", "run3")], 1),
        **dict.fromkeys([(gradient, part) for part in ("visit", "singles8", "singles4", "sums")], 1),
        **dict.fromkeys([(gradient, part) for part in ("run2", "run3")], 2),
    }


def test_a_loop_of_an_unknown_size_is_refused() -> None:
    functions = [function_of("ConvolveTile<Tile<1,4,1,1>>", 20), function_of("GradWeightTiles<Tile<1,4,1,1>>", 32)]
    with pytest.raises(ConfigError, match=r"ConvolveTile<Tile<1,4,1,1>> has a loop of 80 multiply-adds"):
        convolution_loops(functions, (1, 4))


def test_kernels_that_were_inlined_away_are_missed() -> None:
    with pytest.raises(ConfigError, match="no loop of grad_weight over tiles of 1x4 positions"):
        convolution_loops([function_of("ConvolveTile<Tile<1,4,1,1>>", 16)], (1, 4))
