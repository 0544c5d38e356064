"""Whole frames, sealed again after they were altered, so that the digest does not end the test."""

from __future__ import annotations

import hashlib

import numpy as np
from fixtures.forgeries import SHAPES, Forgery, base
from fixtures.repository import GOLDEN

from sparsyedge.edge.commands.frame_command import describe
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.flat_frame import FlatBase, decode_flat
from sparsyedge.edge.wire.flat_layout import FlatLayout
from sparsyedge.edge.wire.frame import decode_frame, decode_lazily, encode_frame, read_header

MODELS: list[tuple[dict[str, tuple[int, ...]], State]] = [
    (SHAPES, base()),
    (
        {"bn.bias": (2,), "conv.weight": (2, 4)},
        decode_frame((GOLDEN / "base.frame").read_bytes(), {"bn.bias": (2,), "conv.weight": (2, 4)}).state,
    ),
]


def seeds() -> list[bytes]:
    state = base()
    state["w"] *= np.float32(1.01)
    state["w"].reshape(-1)[:2] = 0
    based = [
        encode_frame(state, run="r", round_number=1, base_id="00", base=base(), codec=codec, prunable=["w"]).frame
        for codec in ("lossless", "bf16", "int8")
    ]
    golden = [path.read_bytes() for path in sorted(GOLDEN.glob("*.frame"))]
    return [
        *(b"\0" + frame[:-32] for frame in (Forgery().seal(), *based)),
        *(b"\1" + frame[:-32] for frame in golden),
    ]


def check(data: bytes) -> None:
    check_frame(data[1:] + hashlib.sha256(data[1:]).digest(), *MODELS[data[0] % 2 if data else 0])


def check_frame(frame: bytes, shapes: dict[str, tuple[int, ...]], held: State) -> None:
    """A frame is refused, or gives the receiver's own tensors; all ways to decode it agree."""
    try:
        describe(read_header(frame), len(frame))
        state = decode_frame(frame, shapes, held).state
    except FrameError:
        return
    assert {name: tensor.shape for name, tensor in state.items()} == shapes
    lazy = decode_lazily(frame, shapes, held)
    assert all(np.array_equal(lazy[name], state[name], equal_nan=True) for name in state)
    layout = FlatLayout.of(shapes, [name for name in shapes if name in ("w", "conv.weight")])
    entries = decode_flat(frame, layout, FlatBase.of(layout, held))[1].tensors(layout)
    assert all(np.array_equal(entries[name], state[name], equal_nan=True) for name in state)
