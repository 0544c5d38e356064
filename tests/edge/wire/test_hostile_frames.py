"""Frames that a hostile sender forged, digest included: each is refused with a FrameError, and cheaply."""

import contextlib
import hashlib
import tracemalloc
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from fixtures.forgeries import FORGERIES, KEPT, SHAPES, Forge, Forgery, base, compress, with_empty_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.codecs import Codec
from sparsyedge.edge.wire.envelope import MAX_HEADER_BYTES, Mask, SectionReader
from sparsyedge.edge.wire.frame import decode_frame, encode_frame, read_header

# Decoding the honest frame takes far less; trusting a forged length takes far more.
ALLOWED_BYTES = 1 << 20


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
def test_forged_frame_is_refused_without_taking_memory(forge: Forge) -> None:
    forgery = Forgery()
    forge(forgery)
    frame = forgery.seal()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(FrameError):
        decode_frame(frame, SHAPES, base())
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < ALLOWED_BYTES + 2 * len(frame)


class CountedSlices(bytes):
    """Bytes that count how often they are sliced."""

    cuts = 0

    def __getitem__(self, place: Any) -> Any:
        self.cuts += 1
        return super().__getitem__(place)


def test_a_section_of_empty_blocks_is_refused_after_as_many_blocks_as_its_content_can_need() -> None:
    content = bytes(8 << 10)
    section = CountedSlices(with_empty_blocks(compress(content), 1 << 20))
    with pytest.raises(FrameError, match="more than the 13 blocks"):
        SectionReader(section, len(content), planes=4)
    assert section.cuts <= 13


@pytest.mark.parametrize("entries", [1, 300, 40_000])
@pytest.mark.parametrize("tensors", [1, 50])
def test_an_honest_section_has_no_more_blocks_than_are_allowed(entries: int, tensors: int) -> None:
    rng = np.random.default_rng(2)
    state = {f"w{number}": rng.standard_normal(entries, dtype=np.float32) for number in range(tensors)}
    frame = encode_frame(state, run="r", round_number=1, base_id="00", prunable=list(state)).frame
    decoded = decode_frame(frame, dict.fromkeys(state, (entries,))).state
    assert all(np.array_equal(decoded[name], tensor) for name, tensor in state.items())


# ---- differences -----------------------------------------------------------------------------------------------------


def nested(codec: Codec = "lossless") -> bytes:
    """An honest difference to `base()` that drops its two smallest weights."""
    state = base()
    state["w"] *= np.float32(1.01)
    state["w"].reshape(-1)[:2] = 0
    encoded = encode_frame(state, run="r", round_number=1, base_id="00", base=base(), codec=codec, prunable=["w"])
    return encoded.frame


def resealed(frame: bytes, old: bytes, new: bytes) -> bytes:
    """The frame with some header bytes replaced by the same number of others, and a matching digest."""
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
# The memory a receiver needs besides the frame: its own model and a header.
CAP_BYTES = 4 * (100 + 100 * 250) + MAX_HEADER_BYTES


@cache
def large_pair() -> tuple[State, State]:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((100, 250), dtype=np.float32)
    weight[rng.random((100, 250)) < 0.9] = 0
    trained = np.where(np.abs(weight) > 0.1, weight * np.float32(1.01), np.float32(0))
    vector = np.ones(100, dtype=np.float32)
    return {"b": vector, "w": weight}, {"b": vector + 1, "w": trained}


@cache
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
    body = bytearray(honest_frames()[draw(st.integers(0, 4))][:-32])
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


@settings(max_examples=1000, deadline=None)
@given(altered_frames())
def test_altered_frames_raise_nothing_but_frame_errors_and_take_no_more_than_twice_the_cap(frame: bytes) -> None:
    held, _ = large_pair()
    tracemalloc.start()
    try:
        with contextlib.suppress(FrameError):
            state = decode_frame(frame, LARGE_SHAPES, held).state
            assert {name: tensor.shape for name, tensor in state.items()} == LARGE_SHAPES
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * (CAP_BYTES + len(frame))


# ---- memory ----------------------------------------------------------------------------------------------------------

ENTRIES = 1_000_000
DECLARED_BYTES = 4 * ENTRIES


def single_weight(kept: float, *, base_kept: float = 1.0) -> tuple[State, State]:
    """A base and a model with a single weight; with base_kept >= kept, the base keeps all that the model keeps."""
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
