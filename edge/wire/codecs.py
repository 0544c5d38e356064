"""The codecs: how the values of weights travel. One row of `CODECS` is one codec.

Config, messages, frames and benchmarks take the names from here. To add a codec, add its name to `Codec` and its row to
`CODECS`, with a function that turns values into words, and a `Coding` with which the native codec turns them back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.wire import native_codec as native
from sparsyedge.edge.wire.native_codec import Bits, Coding

__all__ = ["CODECS", "DEFAULT_CODEC", "LOSSLESS", "Codec", "ValueCodec", "codec_for"]

Codec = Literal["lossless", "bf16", "int8"]
"""The name of a codec. Type checkers need the names spelled out; a test compares them with the table."""

Words = NDArray[Any]


def _exact_words(values: Bits, base: Bits | None) -> tuple[Words, float]:
    return (values if base is None else native.difference(values, base)), 0.0


def _bf16_words(values: Bits, base: Bits | None) -> tuple[Words, float]:
    halves = native.bf16(values)
    return (halves if base is None else native.difference(halves, native.bf16(base))), 0.0


def _int8_words(values: Bits, base: Bits | None) -> tuple[Words, float]:
    if base is None:
        raise FrameError("there is no base to take a difference to")
    return native.steps_of(values, base)


@dataclass(frozen=True)
class ValueCodec:
    """One way to send a weight's kept values."""

    word: np.dtype[Any]
    """One value before it is cut into byte planes."""
    words_of: Callable[[Bits, Bits | None], tuple[Words, float]]
    """Turns values into words, relative to the base's values if there is a base; also gives the scale (0 if none)."""
    coding: Coding
    """How the native codec turns words back into values."""
    lossy: bool = True
    without_base: Codec | None = None
    """The codec for frames without a base, if this one always needs a base."""

    @property
    def needs_base(self) -> bool:
        return self.without_base is not None


CODECS: dict[Codec, ValueCodec] = {
    "lossless": ValueCodec(np.dtype("<u4"), _exact_words, Coding.LOSSLESS, lossy=False),
    "bf16": ValueCodec(np.dtype("<u2"), _bf16_words, Coding.BF16),
    "int8": ValueCodec(np.dtype("i1"), _int8_words, Coding.INT8, without_base="bf16"),
}

LOSSLESS: Codec = "lossless"
"""The codec of everything but weights, and of weights if every bit counts."""
DEFAULT_CODEC: Codec = "bf16"
"""The default codec of a run: the smallest whose accuracy matches lossless (docs/explanation/wire.md)."""


def codec_for(codec: Codec, base: Container[str] | None, weights: Collection[str] = ()) -> Codec:
    """The codec for a frame of a run with `codec`, given its base, which may lack some of the weights."""
    has_base = base is not None and all(name in base for name in weights)
    return codec if has_base else CODECS[codec].without_base or codec
