"""Frames that a hostile sender forged, digest included: each is refused with a FrameError, and cheaply."""

import contextlib
import hashlib
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsyedge.edge.codec import rice_encode
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.frame import MAGIC, MAX_HEADER_BYTES, Mask
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire import Codec, decode_frame, encode_frame, read_header

SHAPES = {"b": (3,), "w": (4, 5)}
KEPT = 6
# Decoding the honest frame takes far less; a length that is believed takes far more.
ALLOWED_BYTES = 1 << 20


def planes(values: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    return values.astype("<f4").view(np.uint8).reshape(-1, 4).T.tobytes()


def compress(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def ones(count: int) -> bytes:
    return compress(planes(np.ones(count, dtype=np.float32)))


def base() -> State:
    """Has 8 non-zeros in `w`: enough to drop two, or to drop more than a frame allows."""
    weight = np.zeros((4, 5), dtype=np.float32)
    weight.reshape(-1)[:8] = np.arange(1, 9)
    return {"b": np.ones(3, dtype=np.float32), "w": weight}


class Forgery:
    """The parts of a frame, each open to change; `seal` puts them together with lengths and digest that agree."""

    def __init__(self) -> None:
        parameter, codes = rice_encode(np.arange(KEPT, dtype=np.uint32))
        # Name, shape, kept, mask, Rice parameter, whether it is a difference, scale.
        self.weight: list[Any] = ["w", [4, 5], KEPT, int(Mask.KEPT), parameter, False, 0.0]
        self.more_weights: list[Any] = []
        self.others: list[Any] = [["b", [3], False]]
        self.masks = codes.tobytes()
        self.weight_values = ones(KEPT)
        self.other_values = ones(3)
        self.header: dict[str, Any] = {
            "run": "demo",
            "round": 1,
            "base_id": "00",
            "base_check": b"",
            "codec": "lossless",
        }
        self.packed: bytes | None = None
        self.header_bytes: int | None = None
        self.unpacked_bytes: int | None = None

    def seal(self) -> bytes:
        header = {
            "weights": [self.weight, *self.more_weights],
            "others": self.others,
            "mask_bytes": len(self.masks),
            "weight_bytes": len(self.weight_values),
            "other_bytes": len(self.other_values),
        }
        packed = self.packed if self.packed is not None else msgspec.msgpack.encode({**header, **self.header})
        length = self.header_bytes if self.header_bytes is not None else len(packed)
        unpacked = self.unpacked_bytes if self.unpacked_bytes is not None else length
        body = struct.pack("<4sII", MAGIC, length, unpacked) + packed
        body += self.masks + self.weight_values + self.other_values
        return body + hashlib.sha256(body).digest()


# ---- tensors ---------------------------------------------------------------------------------------------------------


def huge_kept(forgery: Forgery) -> None:
    forgery.weight[2] = 2**63


def negative_kept(forgery: Forgery) -> None:
    forgery.weight[2] = -1


def one_kept_more_than_there_are(forgery: Forgery) -> None:
    forgery.weight[2] = 21


def fewer_kept_than_the_mask(forgery: Forgery) -> None:
    forgery.weight[2] = KEPT - 1
    forgery.weight_values = ones(KEPT - 1)


def no_mask_though_entries_are_missing(forgery: Forgery) -> None:
    forgery.weight[3] = int(Mask.ALL)
    forgery.masks = b""


def huge_shape(forgery: Forgery) -> None:
    forgery.weight[1] = [2**40, 2**40]


def transposed_shape(forgery: Forgery) -> None:
    forgery.weight[1] = [5, 4]


def flattened_shape(forgery: Forgery) -> None:
    forgery.others[0][1] = [3, 1]


def a_tensor_twice(forgery: Forgery) -> None:
    forgery.others.append(["b", [3], False])
    forgery.other_values = ones(6)


def a_tensor_as_weight_and_as_other(forgery: Forgery) -> None:
    forgery.others.append(["w", [4, 5], False])
    forgery.other_values = ones(23)


def a_tensor_too_many(forgery: Forgery) -> None:
    forgery.more_weights.append(["x", [3], 3, int(Mask.ALL), 0, False, 0.0])


def a_tensor_too_few(forgery: Forgery) -> None:
    forgery.others = []
    forgery.other_values = b""


def a_weight_with_a_field_too_many(forgery: Forgery) -> None:
    forgery.weight.append(1)


# ---- masks -----------------------------------------------------------------------------------------------------------


def mask_of_an_unknown_kind(forgery: Forgery) -> None:
    forgery.weight[3] = 9


def mask_over_a_base_that_no_value_needs(forgery: Forgery) -> None:
    forgery.weight[3] = int(Mask.DROPPED)


def mask_of_zeros_that_says_what_is_kept(forgery: Forgery) -> None:
    forgery.weight[3] = int(Mask.ZEROS)


def mask_with_a_huge_parameter(forgery: Forgery) -> None:
    forgery.weight[4] = 2**32


def mask_with_a_parameter_just_out_of_range(forgery: Forgery) -> None:
    forgery.weight[4] = 32


def mask_that_leaves_its_tensor(forgery: Forgery) -> None:
    forgery.weight[4], codes = rice_encode(np.arange(16, 16 + KEPT, dtype=np.uint32))
    forgery.masks = codes.tobytes()


def mask_of_endless_zero_bits(forgery: Forgery) -> None:
    forgery.masks = bytes(100_000)


def mask_too_long(forgery: Forgery) -> None:
    forgery.masks += b"\0"


def mask_too_short(forgery: Forgery) -> None:
    forgery.masks = forgery.masks[:-1]


def mask_with_bits_behind_its_end(forgery: Forgery) -> None:
    forgery.masks = forgery.masks[:-1] + bytes([forgery.masks[-1] | 0x80])


# ---- values ----------------------------------------------------------------------------------------------------------


def values_too_few(forgery: Forgery) -> None:
    forgery.weight_values = ones(KEPT - 1)


def values_missing(forgery: Forgery) -> None:
    forgery.weight_values = b""


def values_that_explode(forgery: Forgery) -> None:
    forgery.weight_values = compress(bytes(1 << 28))


def others_that_explode(forgery: Forgery) -> None:
    forgery.other_values = compress(bytes(1 << 28))


def values_that_hide_their_size(forgery: Forgery) -> None:
    forgery.weight_values = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 24))


def values_that_declare_less_than_they_are(forgery: Forgery) -> None:
    section = bytearray(compress(bytes(255)))
    section[section.index(255, 4)] = 4 * KEPT
    forgery.weight_values = bytes(section)


def values_that_ask_for_a_huge_window(forgery: Forgery) -> None:
    # Magic; descriptor with a window byte and a content size of four bytes; window of 2 GiB; content size; no block.
    start = b"\x28\xb5\x2f\xfd" + bytes([0x80, 21 << 3])
    forgery.weight_values = start + (4 * KEPT).to_bytes(4, "little") + b"\x01\x00\x00"


def values_with_a_tail(forgery: Forgery) -> None:
    forgery.weight_values += compress(b"more")


def values_of_noise(forgery: Forgery) -> None:
    forgery.weight_values = bytes(range(64))


def values_where_nothing_is_kept(forgery: Forgery) -> None:
    forgery.weight[2] = 0
    forgery.masks = b""


def steps_without_a_base(forgery: Forgery) -> None:
    forgery.header["codec"] = "int8"
    forgery.weight_values = compress(bytes(KEPT))


def values_of_an_unknown_codec(forgery: Forgery) -> None:
    forgery.header["codec"] = "fp4"


# ---- the base --------------------------------------------------------------------------------------------------------


def check_of_a_base_that_is_not_used(forgery: Forgery) -> None:
    forgery.header["base_check"] = bytes(8)


def check_that_is_too_long(forgery: Forgery) -> None:
    forgery.header["base_check"] = bytes(1000)


# ---- sections and header ---------------------------------------------------------------------------------------------


def sections_longer_than_the_frame(forgery: Forgery) -> None:
    forgery.header["weight_bytes"] = 2**62


def sections_shorter_than_the_frame(forgery: Forgery) -> None:
    forgery.header["mask_bytes"] = len(forgery.masks) - 1


def sections_that_overlap_and_still_add_up(forgery: Forgery) -> None:
    forgery.header["weight_bytes"] = len(forgery.weight_values) - 5
    forgery.header["other_bytes"] = len(forgery.other_values) + 5


def negative_section(forgery: Forgery) -> None:
    forgery.header["mask_bytes"] = -1


def header_longer_than_the_frame(forgery: Forgery) -> None:
    forgery.header_bytes = 2**32 - 1


def header_of_length_zero(forgery: Forgery) -> None:
    forgery.header_bytes = 0


def header_that_claims_to_unpack_to_gigabytes(forgery: Forgery) -> None:
    forgery.unpacked_bytes = 2**32 - 1


def header_that_explodes(forgery: Forgery) -> None:
    forgery.packed = compress(bytes(1 << 28))
    forgery.unpacked_bytes = 1 << 20


def header_that_is_not_compressed_though_it_says_so(forgery: Forgery) -> None:
    forgery.unpacked_bytes = 1000


def header_of_noise(forgery: Forgery) -> None:
    forgery.packed = bytes(range(100, 200))


def header_that_is_not_utf8(forgery: Forgery) -> None:
    forgery.packed = b"\x81\xa3run\xa2\xff\xfe"


def header_that_is_a_list(forgery: Forgery) -> None:
    forgery.packed = msgspec.msgpack.encode([1, 2, 3])


def header_with_a_missing_field(forgery: Forgery) -> None:
    forgery.packed = msgspec.msgpack.encode({"run": "demo"})


def header_with_a_field_too_many(forgery: Forgery) -> None:
    forgery.header["extra"] = 1


def header_that_claims_a_huge_array(forgery: Forgery) -> None:
    forgery.packed = b"\x81\xa7weights\xdd\xff\xff\xff\xff"


def header_nested_beyond_the_stack(forgery: Forgery) -> None:
    forgery.packed = b"\x81\xa4deep" + b"\x91" * 500_000 + b"\xc0"


FORGERIES: list[Callable[[Forgery], None]] = [
    huge_kept,
    negative_kept,
    one_kept_more_than_there_are,
    fewer_kept_than_the_mask,
    no_mask_though_entries_are_missing,
    huge_shape,
    transposed_shape,
    flattened_shape,
    a_tensor_twice,
    a_tensor_as_weight_and_as_other,
    a_tensor_too_many,
    a_tensor_too_few,
    a_weight_with_a_field_too_many,
    mask_of_an_unknown_kind,
    mask_over_a_base_that_no_value_needs,
    mask_of_zeros_that_says_what_is_kept,
    mask_with_a_huge_parameter,
    mask_with_a_parameter_just_out_of_range,
    mask_that_leaves_its_tensor,
    mask_of_endless_zero_bits,
    mask_too_long,
    mask_too_short,
    mask_with_bits_behind_its_end,
    values_too_few,
    values_missing,
    values_that_explode,
    others_that_explode,
    values_that_hide_their_size,
    values_that_declare_less_than_they_are,
    values_that_ask_for_a_huge_window,
    values_with_a_tail,
    values_of_noise,
    values_where_nothing_is_kept,
    steps_without_a_base,
    values_of_an_unknown_codec,
    check_of_a_base_that_is_not_used,
    check_that_is_too_long,
    sections_longer_than_the_frame,
    sections_shorter_than_the_frame,
    sections_that_overlap_and_still_add_up,
    negative_section,
    header_longer_than_the_frame,
    header_of_length_zero,
    header_that_claims_to_unpack_to_gigabytes,
    header_that_explodes,
    header_that_is_not_compressed_though_it_says_so,
    header_of_noise,
    header_that_is_not_utf8,
    header_that_is_a_list,
    header_with_a_missing_field,
    header_with_a_field_too_many,
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
        decode_frame(frame, SHAPES, base())
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < ALLOWED_BYTES + 2 * len(frame)


def test_all_forgeries_are_tried() -> None:
    assert len({forge.__name__ for forge in FORGERIES}) == len(FORGERIES)


# ---- differences -----------------------------------------------------------------------------------------------------


def nested(codec: Codec = "lossless") -> bytes:
    """An honest difference to `base()` that drops its two smallest weights."""
    state = base()
    state["w"] *= np.float32(1.01)
    state["w"].reshape(-1)[:2] = 0
    encoded = encode_frame(state, run="r", round_number=1, base_id="00", base=base(), codec=codec, prunable=["w"])
    return encoded.frame


def resealed(frame: bytes, old: bytes, new: bytes) -> bytes:
    """The frame with some bytes of its header replaced by as many others, and a digest that agrees."""
    assert frame.count(old) == 1
    assert len(old) == len(new)
    body = frame[:-32].replace(old, new)
    return body + hashlib.sha256(body).digest()


def entry(kept: int, mask: Mask) -> bytes:
    return msgspec.msgpack.encode(["w", [4, 5], kept, mask])[1:]


@pytest.mark.parametrize("kept", [0, 3, 5, 7, 9, 20])
def test_mask_over_the_base_with_another_count_is_refused(kept: int) -> None:
    frame = resealed(nested(), entry(6, Mask.DROPPED), entry(kept, Mask.DROPPED))
    with pytest.raises(FrameError):
        decode_frame(frame, SHAPES, base())


def test_check_of_another_base_is_refused() -> None:
    frame = nested()
    honest = frame[frame.index(b"base_check") + 12 :][:8]
    with pytest.raises(FrameError, match="another model"):
        decode_frame(resealed(frame, honest, bytes(8)), SHAPES, base())


def test_scale_that_is_not_finite_is_refused() -> None:
    frame = nested("int8")
    scale = frame[frame.index(entry(6, Mask.DROPPED)) + len(entry(6, Mask.DROPPED)) + 2 :][:9]
    for forged in (np.nan, np.inf, 1e300, -1.0):
        with pytest.raises(FrameError):
            decode_frame(resealed(frame, scale, msgspec.msgpack.encode(forged)), SHAPES, base())


LARGE_SHAPES = {"b": (100,), "w": (100, 250)}
# What a receiver declares that it can take: its own model, the frame, and a header.
CAP_BYTES = 4 * (100 + 100 * 250) + MAX_HEADER_BYTES


def large_pair() -> tuple[State, State]:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((100, 250), dtype=np.float32)
    weight[rng.random((100, 250)) < 0.9] = 0
    trained = np.where(np.abs(weight) > 0.1, weight * np.float32(1.01), np.float32(0))
    vector = np.ones(100, dtype=np.float32)
    return {"b": vector, "w": weight}, {"b": vector + 1, "w": trained}


def honest_frames() -> list[bytes]:
    held, state = large_pair()
    arguments: list[tuple[State | None, Codec]] = [(None, "lossless"), (None, "bf16"), (held, "lossless")]
    arguments += [(held, "bf16"), (held, "int8")]
    return [
        encode_frame(state, run="r", round_number=1, base_id="00", base=near, codec=codec, prunable=["w"]).frame
        for near, codec in arguments
    ]


@st.composite
def altered_frames(draw: st.DrawFn) -> bytes:
    """An honest frame with a few bytes changed, cut or inserted, mostly in its header, and a digest that agrees."""
    body = bytearray(draw(st.sampled_from(honest_frames()))[:-32])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.one_of(st.integers(0, 300), st.integers(0, len(body) - 1)))
        change = draw(st.sampled_from(["flip", "set", "cut", "insert"]))
        if change == "flip":
            body[place] ^= 1 << draw(st.integers(0, 7))
        elif change == "set":
            body[place] = draw(st.integers(0, 255))
        elif change == "cut":
            del body[place]
        else:
            body.insert(place, draw(st.integers(0, 255)))
    return bytes(body) + hashlib.sha256(body).digest()


@pytest.mark.usefixtures("traced")
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(altered_frames())
def test_altered_frames_raise_nothing_but_frame_errors_and_take_no_more_than_twice_the_cap(frame: bytes) -> None:
    held, _ = large_pair()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with contextlib.suppress(FrameError):
        state = decode_frame(frame, LARGE_SHAPES, held).state
        assert {name: tensor.shape for name, tensor in state.items()} == LARGE_SHAPES
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < 2 * (CAP_BYTES + len(frame))


# ---- memory ----------------------------------------------------------------------------------------------------------

ENTRIES = 1_000_000
DECLARED_BYTES = 4 * ENTRIES


def single_weight(kept: float, *, base_kept: float = 1.0) -> tuple[State, State]:
    """A weight that is the whole model, and its base, which keeps all that the weight keeps and perhaps more."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal(ENTRIES, dtype=np.float32)
    order = rng.permutation(ENTRIES)
    base, state = np.zeros_like(values), np.zeros_like(values)
    base[order[: round(base_kept * ENTRIES)]] = values[order[: round(base_kept * ENTRIES)]]
    state[order[: round(kept * ENTRIES)]] = 1.01 * values[order[: round(kept * ENTRIES)]]
    return {"w": base}, {"w": state}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("kept", "base_kept", "codec", "mask"),
    [
        (1.0, None, "lossless", Mask.ALL),
        (1.0, 1.0, "lossless", Mask.ALL),
        (0.999999, None, "lossless", Mask.ZEROS),
        (0.5, None, "lossless", Mask.KEPT),
        (0.999999, 1.0, "lossless", Mask.DROPPED),
        (0.999999, 1.0, "bf16", Mask.DROPPED),
        (0.999999, 1.0, "int8", Mask.DROPPED),
        (0.500001, 1.0, "lossless", Mask.DROPPED),
        (0.6, 0.5, "int8", Mask.ZEROS),
    ],
)
def test_a_nearly_dense_weight_takes_no_more_than_twice_what_the_receiver_declares(
    kept: float, base_kept: float | None, codec: Codec, mask: Mask
) -> None:
    base, state = single_weight(kept, base_kept=base_kept or 0.0)
    held = base if base_kept is not None else None
    encoded = encode_frame(state, run="r", round_number=1, base_id="00", base=held, codec=codec, prunable=["w"])
    assert read_header(encoded.frame).weights[0].mask is mask
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    decoded = decode_frame(encoded.frame, {"w": (ENTRIES,)}, held).state
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < 2 * DECLARED_BYTES
    np.testing.assert_array_equal(decoded["w"], encoded.decoded["w"])
