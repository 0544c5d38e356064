"""Frames that a hostile sender forged, digest included: each is refused with a FrameError, and cheaply."""

import hashlib
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.wire import MAGIC, decode_frame

SHAPES = {"b": (3,), "w": (4, 5)}
KEPT = 6
# Decoding the honest frame takes far less; a length that is believed takes far more.
ALLOWED_BYTES = 1 << 20


def planes(values: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    return values.astype("<f4").view(np.uint8).reshape(-1, 4).T.tobytes()


def compress(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def honest_masks() -> bytes:
    mask = np.zeros(20, dtype=bool)
    mask[:KEPT] = True
    return np.packbits(mask, bitorder="little").tobytes()


class Forgery:
    """The parts of a frame, each open to change; `seal` puts them together with lengths and digest that agree."""

    def __init__(self) -> None:
        self.tensors: list[Any] = [["b", [3], 3], ["w", [4, 5], KEPT]]
        self.masks = compress(honest_masks())
        self.values = compress(planes(np.ones(3 + KEPT, dtype=np.float32)))
        self.header: dict[str, Any] = {"run": "demo", "round": 1, "base": "00"}
        self.packed: bytes | None = None
        self.header_bytes: int | None = None

    def seal(self) -> bytes:
        header = {"mask_bytes": len(self.masks), "value_bytes": len(self.values), "tensors": self.tensors}
        packed = self.packed if self.packed is not None else msgspec.msgpack.encode({**header, **self.header})
        length = self.header_bytes if self.header_bytes is not None else len(packed)
        body = struct.pack("<4sI", MAGIC, length) + packed + self.masks + self.values
        return body + hashlib.sha256(body).digest()


def huge_kept(forgery: Forgery) -> None:
    forgery.tensors[1][2] = 2**63


def negative_kept(forgery: Forgery) -> None:
    forgery.tensors[1][2] = -1


def fewer_kept_than_the_mask(forgery: Forgery) -> None:
    forgery.tensors[1][2] = KEPT - 1
    forgery.values = compress(planes(np.ones(3 + KEPT - 1, dtype=np.float32)))


def huge_shape(forgery: Forgery) -> None:
    forgery.tensors[1][1] = [2**40, 2**40]


def transposed_shape(forgery: Forgery) -> None:
    forgery.tensors[1][1] = [5, 4]


def flattened_shape(forgery: Forgery) -> None:
    forgery.tensors[1][1] = [20]


def a_tensor_twice(forgery: Forgery) -> None:
    forgery.tensors.append(["b", [3], 3])


def a_tensor_too_many(forgery: Forgery) -> None:
    forgery.tensors.append(["x", [3], 3])


def a_tensor_too_few(forgery: Forgery) -> None:
    del forgery.tensors[0]


def no_tensors(forgery: Forgery) -> None:
    forgery.tensors = []


def mask_of_ones(forgery: Forgery) -> None:
    forgery.masks = compress(b"\xff" * 3)


def mask_too_long(forgery: Forgery) -> None:
    forgery.masks = compress(honest_masks() + b"\0")


def mask_too_short(forgery: Forgery) -> None:
    forgery.masks = compress(honest_masks()[:-1])


def mask_missing(forgery: Forgery) -> None:
    forgery.masks = b""


def values_too_few(forgery: Forgery) -> None:
    forgery.values = compress(planes(np.ones(KEPT, dtype=np.float32)))


def values_that_explode(forgery: Forgery) -> None:
    forgery.values = compress(bytes(1 << 28))


def masks_that_explode(forgery: Forgery) -> None:
    forgery.masks = compress(bytes(1 << 28))


def values_that_hide_their_size(forgery: Forgery) -> None:
    forgery.values = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 24))


def values_that_declare_less_than_they_are(forgery: Forgery) -> None:
    honest = 4 * (3 + KEPT)
    section = bytearray(compress(bytes(255)))
    section[section.index(255, 4)] = honest
    forgery.values = bytes(section)


def values_that_ask_for_a_huge_window(forgery: Forgery) -> None:
    # Magic; descriptor with a window byte and a content size of four bytes; window of 2 GiB; content size; no block.
    honest = 4 * (3 + KEPT)
    forgery.values = b"\x28\xb5\x2f\xfd" + bytes([0x80, 21 << 3]) + honest.to_bytes(4, "little") + b"\x01\x00\x00"


def values_with_a_tail(forgery: Forgery) -> None:
    forgery.values += compress(b"more")


def values_of_noise(forgery: Forgery) -> None:
    forgery.values = bytes(range(64))


def sections_longer_than_the_frame(forgery: Forgery) -> None:
    forgery.header["value_bytes"] = 2**62


def sections_shorter_than_the_frame(forgery: Forgery) -> None:
    forgery.header["mask_bytes"] = len(forgery.masks) - 1


def sections_that_overlap_and_still_add_up(forgery: Forgery) -> None:
    forgery.header["mask_bytes"] = len(forgery.masks) - 5
    forgery.header["value_bytes"] = len(forgery.values) + 5


def negative_section(forgery: Forgery) -> None:
    forgery.header["mask_bytes"] = -1


def header_longer_than_the_frame(forgery: Forgery) -> None:
    forgery.header_bytes = 2**32 - 1


def header_of_length_zero(forgery: Forgery) -> None:
    forgery.header_bytes = 0


def header_of_noise(forgery: Forgery) -> None:
    forgery.packed = bytes(range(100, 200))


def header_that_is_not_utf8(forgery: Forgery) -> None:
    forgery.packed = b"\x81\xa3run\xa2\xff\xfe"


def header_that_is_a_list(forgery: Forgery) -> None:
    forgery.packed = msgspec.msgpack.encode([1, 2, 3])


def header_with_a_missing_field(forgery: Forgery) -> None:
    forgery.packed = msgspec.msgpack.encode({"run": "demo"})


def header_that_claims_a_huge_array(forgery: Forgery) -> None:
    forgery.packed = b"\x81\xa7tensors\xdd\xff\xff\xff\xff"


def header_nested_beyond_the_stack(forgery: Forgery) -> None:
    forgery.packed = b"\x81\xa4deep" + b"\x91" * 500_000 + b"\xc0"


FORGERIES: list[Callable[[Forgery], None]] = [
    huge_kept,
    negative_kept,
    fewer_kept_than_the_mask,
    huge_shape,
    transposed_shape,
    flattened_shape,
    a_tensor_twice,
    a_tensor_too_many,
    a_tensor_too_few,
    no_tensors,
    mask_of_ones,
    mask_too_long,
    mask_too_short,
    mask_missing,
    values_too_few,
    values_that_explode,
    masks_that_explode,
    values_that_hide_their_size,
    values_that_declare_less_than_they_are,
    values_that_ask_for_a_huge_window,
    values_with_a_tail,
    values_of_noise,
    sections_longer_than_the_frame,
    sections_shorter_than_the_frame,
    sections_that_overlap_and_still_add_up,
    negative_section,
    header_longer_than_the_frame,
    header_of_length_zero,
    header_of_noise,
    header_that_is_not_utf8,
    header_that_is_a_list,
    header_with_a_missing_field,
    header_that_claims_a_huge_array,
    header_nested_beyond_the_stack,
]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_the_honest_frame_is_taken() -> None:
    state = decode_frame(Forgery().seal(), SHAPES).state
    assert int(np.count_nonzero(state["w"])) == KEPT


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_forged_frame_is_refused_without_taking_memory(forge: Callable[[Forgery], None]) -> None:
    forgery = Forgery()
    forge(forgery)
    frame = forgery.seal()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(FrameError):
        decode_frame(frame, SHAPES)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < ALLOWED_BYTES + 2 * len(frame)


def test_all_forgeries_are_tried() -> None:
    assert len({forge.__name__ for forge in FORGERIES}) == len(FORGERIES)
