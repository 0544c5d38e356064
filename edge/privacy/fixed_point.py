"""Values as integers whose sum over a whole cohort cannot overflow, and back."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import SecurityError

__all__ = ["FixedPoint", "Words", "pack", "unpack"]

MAX_DEVICES = 100_000
MAX_LENGTH = 1 << 28

Words = NDArray[np.unsignedinteger[Any]]


class FixedPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How values become integers.

    A value x of a device that weighs w becomes (min(w, cap) / cap * x + clip) / (2 * clip) * top, rounded up or down by
    chance so that the mean is right, with x clipped to +-clip and top = 2**value_bits - 1. Sums are taken modulo
    2**(8 * word_bytes), which the sum of all devices' largest integers does not reach.
    """

    clip: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    value_bits: Annotated[int, msgspec.Meta(ge=2, le=24)]
    cap: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    """The most that a device may weigh. A sum has the weights exactly, as one more integer, so it fits value_bits."""
    devices: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)]
    """The most that are summed."""

    def __post_init__(self) -> None:
        if self.cap > self.top:
            raise ValueError(f"cap = {self.cap} needs more than value_bits = {self.value_bits}: at most {self.top}")

    @property
    def top(self) -> int:
        """The largest integer of a device."""
        return (1 << self.value_bits) - 1

    @property
    def word_bytes(self) -> int:
        """Bytes of a masked integer."""
        sum_bits = self.value_bits + (self.devices - 1).bit_length()
        return -(-sum_bits // 8)

    @property
    def dtype(self) -> type[np.uint32] | type[np.uint64]:
        """In what masked integers are computed; its modulus is a multiple of theirs."""
        return np.uint32 if self.word_bytes <= 4 else np.uint64

    def encode(self, values: NDArray[np.floating], weight: int, random: np.random.Generator) -> Words:
        """A device's integers: one for each value, and its weight."""
        if weight < 1:
            raise SecurityError(f"a device of weight {weight} adds nothing to a sum; allowed is 1 and more")
        if not np.isfinite(values).all():
            raise SecurityError("a value to be summed is not a number; nothing was sent")
        weight = min(weight, self.cap)
        levels = np.clip(values.astype(np.float64), -self.clip, self.clip)
        levels *= weight / self.cap
        levels += self.clip
        levels *= self.top / (2 * self.clip)
        levels += random.random(levels.size)
        words = np.empty(levels.size + 1, self.dtype)
        words[:-1] = np.minimum(np.floor(levels, out=levels), self.top)
        words[-1] = weight
        return words

    def decode(self, total: Words, devices: int) -> tuple[NDArray[np.float64], int]:
        """The weighted mean of the values that were summed, and the devices' weight together."""
        weight = int(total[-1])
        if not devices <= weight <= devices * self.cap:
            raise SecurityError(f"the sum of {devices} devices weighs {weight}, allowed is up to {devices * self.cap}")
        mean = total[:-1].astype(np.float64)
        mean *= 2 * self.clip / self.top
        mean -= devices * self.clip
        mean *= self.cap / weight
        return mean, weight


def pack(words: Words, word_bytes: int) -> bytes:
    """The low bytes of each word, little-endian."""
    columns = words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(words.size, -1)
    return columns[:, :word_bytes].tobytes()


def unpack(content: bytes, scale: FixedPoint, length: int) -> Words:
    """The words of a payload with that many; raises SecurityError if it has another size."""
    wanted = length * scale.word_bytes
    if length > MAX_LENGTH or len(content) != wanted:
        raise SecurityError(
            f"a masked update has {len(content)} bytes, {length} words of {scale.word_bytes} have {wanted}"
        )
    words = np.zeros(length, np.dtype(scale.dtype).newbyteorder("<"))
    words.view(np.uint8).reshape(length, -1)[:, : scale.word_bytes] = np.frombuffer(content, np.uint8).reshape(
        length, -1
    )
    return words.astype(scale.dtype, copy=False)
