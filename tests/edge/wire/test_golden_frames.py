"""Recorded frames that every version must write and read the same way; see tests/golden/README.md."""

import hashlib
import re

import numpy as np
import pytest
from fixtures.repository import DOCS, GOLDEN

from sparsyedge.edge.tensors import FloatArray, State
from sparsyedge.edge.wire.codecs import Codec
from sparsyedge.edge.wire.frame import decode_frame, encode_frame

BASE_ID = "ab" * 32

BASE: State = {
    "conv.weight": np.array([[0.0, 1.5, 0.0, -0.5], [2.0, 0.0, 0.25, 0.0]], dtype=np.float32),
    "bn.bias": np.array([0.25, -0.0], dtype=np.float32),
}
TRAINED: State = {
    "conv.weight": np.array([[0.0, 1.5625, 0.0, -0.501953125], [1.75, 0.0, 0.0, 0.0]], dtype=np.float32),
    "bn.bias": np.array([0.375, -0.0], dtype=np.float32),
}
# bf16 has seven bits of mantissa: 0.501953125 (2^-1 + 2^-9) lies between two of its numbers and goes to the even one.
AS_BF16 = np.array([[0.0, 1.5625, 0.0, -0.5], [1.75, 0.0, 0.0, 0.0]], dtype=np.float32)
# One step is 0.25 / 127, from the largest move; the other moves are 31.75 and 0.99 steps.
STEP = np.float32(0.25) / np.float32(127)
AS_INT8 = np.array([[0.0, 1.5 + 32 * STEP, 0.0, -0.5 - STEP], [2.0 - 127 * STEP, 0, 0, 0]], dtype=np.float32)

FRAMES: dict[str, tuple[State, State | None, Codec, FloatArray, str]] = {
    "base": (
        BASE,
        None,
        "lossless",
        BASE["conv.weight"],
        "b2d4e03db2ab175d8aa4af64e33ba5de71640d39befbc4ec46653957383cfd80",
    ),
    "lossless": (
        TRAINED,
        BASE,
        "lossless",
        TRAINED["conv.weight"],
        "daa333657c10b5e86847cc55afe3943ecf1c78d631b4bd516c7609545ca43088",
    ),
    "bf16": (TRAINED, BASE, "bf16", AS_BF16, "a6ae7340190ba443485318dfa7dd804cb487e04126783b9c13fd6e5285d3e94e"),
    "int8": (TRAINED, BASE, "int8", AS_INT8, "9864f3734beb910e4c6c7f978dfe00f5de45c6e2ef56734a615d87d1fbf067a5"),
}
"""By name: the state, its base, the codec, the weight that the receiver gets, and the SHA-256 of the file."""


@pytest.mark.parametrize("name", FRAMES)
def test_golden_frame_is_the_one_that_was_recorded(name: str) -> None:
    assert hashlib.sha256((GOLDEN / f"{name}.frame").read_bytes()).hexdigest() == FRAMES[name][4]


@pytest.mark.parametrize("name", FRAMES)
def test_golden_frame_is_still_written(name: str) -> None:
    state, base, codec, _, _ = FRAMES[name]
    encoded = encode_frame(
        state, run="demo", round_number=3, base_id=BASE_ID, base=base, codec=codec, prunable=["conv.weight"]
    )
    assert encoded.frame == (GOLDEN / f"{name}.frame").read_bytes()


@pytest.mark.parametrize("name", FRAMES)
def test_golden_frame_is_still_read(name: str) -> None:
    state, base, _, weight, _ = FRAMES[name]
    shapes = {tensor: array.shape for tensor, array in state.items()}
    decoded = decode_frame((GOLDEN / f"{name}.frame").read_bytes(), shapes, base).state
    assert decoded["conv.weight"].tobytes() == weight.tobytes()
    assert decoded["bn.bias"].tobytes() == state["bn.bias"].tobytes()


def test_every_golden_frame_is_tried() -> None:
    assert {path.stem for path in GOLDEN.glob("*.frame")} == set(FRAMES)


def test_the_documented_example_is_the_golden_frame() -> None:
    text = (DOCS / "reference" / "frame.md").read_text(encoding="utf-8")
    block = text.partition("```hex int8.frame\n")[2].partition("```")[0]
    # Bytes come first in a line, in groups; two spaces or more begin the words about them.
    groups = [re.split(r"\s{2,}", line.strip())[0] for line in block.splitlines() if re.match(r" {0,2}[0-9a-f]", line)]
    assert bytes.fromhex("".join(groups)) == (GOLDEN / "int8.frame").read_bytes()
