"""Loops are found in a disassembly, and what is counted in them."""

from sparsyedge.hardware.arm.instructions import SETS, innermost_loops

NEON = SETS[0]

LISTING = """
0000000000000000 <kernel>:
   0:\tmov\tx3, #0x0
   4:\tldr\tq0, [x1], #16
   8:\tfmla\tv1.4s, v0.4s, v2.s[0]
   c:\tfmla\tv3.4s, v0.4s, v2.s[1]
  10:\tstr\tq3, [sp, #32]
  14:\tcmp\tx1, x2
  18:\tb.ne\t4 <kernel+0x4>
  1c:\tadd\tx3, x3, #0x1
  20:\tcbnz\tx3, 0 <kernel>
  24:\tret
"""


def test_only_the_innermost_loop_counts_with_its_branch() -> None:
    (loop,) = innermost_loops(LISTING, NEON)
    assert (loop.instructions, loop.fused, loop.stack) == (6, 2, 1)
    assert loop.per_fused == 3.0
    assert loop.per_multiply_add == 0.75


def test_code_without_a_backward_branch_has_no_loop() -> None:
    assert innermost_loops(LISTING.replace("4 <kernel+0x4>", "24 <kernel+0x24>").replace("0 <kernel>", ""), NEON) == []
