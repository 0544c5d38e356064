import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import State, dense_bytes, model_id
from sparsyedge.edge.wire.codecs import CODECS, Codec
from sparsyedge.edge.wire.envelope import Mask
from sparsyedge.edge.wire.frame import Encoded, decode_frame, encode_frame, read_header

BASE_ID = "ab" * 32
SMALL: State = {
    "conv.weight": np.array([[0.0, 1.5], [-2.0, 0.0]], dtype=np.float32),
    "bn.bias": np.array([0.25], dtype=np.float32),
}


def shapes_of(state: State) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in state.items()}


def is_weight(name: str) -> bool:
    return "w" in name


def encode(state: State, base: State | None = None, codec: Codec = "lossless") -> Encoded:
    prunable = [name for name in state if is_weight(name)]
    return encode_frame(state, run="demo", round_number=3, base_id=BASE_ID, base=base, codec=codec, prunable=prunable)


def bits(state: State) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (tensor.shape, tensor.astype("<f4").tobytes()) for name, tensor in sorted(state.items())}


def trained_pair(seed: int = 0, *, density: float = 0.1, dropped: float = 0.05) -> tuple[State, State]:
    """A sparse base, and a model that was trained from it and pruned a little more."""
    rng = np.random.default_rng(seed)
    shape = (64, 32, 3, 3)
    weight = rng.standard_normal(shape, dtype=np.float32)
    weight[rng.random(shape) >= density] = 0
    base = {"conv.weight": weight, "bn.bias": rng.standard_normal(64, dtype=np.float32)}
    moved = weight * (1 + 0.02 * rng.standard_normal(shape, dtype=np.float32))
    threshold = np.quantile(np.abs(moved[moved != 0]), dropped)
    moved[np.abs(moved) < threshold] = 0
    return base, {"conv.weight": moved, "bn.bias": base["bn.bias"] + np.float32(0.01)}


# Any 32 bits are a float32: NaN payloads, infinities, subnormals and negative zeros included.
patterns = st.one_of(st.just(0), st.just(0x80000000), st.just(0x7FC00001), st.integers(0, 2**32 - 1))
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
any_floats = hnp.arrays(np.uint32, shapes, elements=patterns).map(lambda array: array.view(np.float32))
any_states = st.dictionaries(st.text(min_size=0, max_size=12), any_floats, max_size=5)


# ---- without loss ----------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(any_states)
def test_every_bit_of_any_state_survives_the_wire(state: State) -> None:
    encoded = encode(state)
    frame = decode_frame(encoded.frame, shapes_of(state))
    assert bits(frame.state) == bits(state)
    assert all(tensor.dtype == np.float32 for tensor in frame.state.values())
    assert model_id(frame.state) == model_id(state)
    assert not frame.header.needs_base


@settings(max_examples=200, deadline=None)
@given(any_states, st.data())
def test_every_bit_survives_as_a_difference_to_any_base(state: State, data: st.DataObject) -> None:
    base = {
        name: data.draw(hnp.arrays(np.uint32, tensor.shape, elements=patterns)).view(np.float32)
        for name, tensor in state.items()
        if data.draw(st.booleans())
    }
    encoded = encode(state, base)
    frame = decode_frame(encoded.frame, shapes_of(state), base)
    assert bits(frame.state) == bits(state)
    assert frame.header.needs_base == bool(base)


@settings(max_examples=30, deadline=None)
@given(density=st.floats(0, 1), size=st.integers(0, 5000), seed=st.integers(0, 2**32 - 1))
def test_every_density_survives_the_wire(density: float, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensor = np.where(rng.random(size) < density, rng.standard_normal(size, dtype=np.float32), np.float32(0))
    state = {"w": tensor, "b": np.zeros(3, dtype=np.float32)}
    decoded = decode_frame(encode(state).frame, shapes_of(state))
    np.testing.assert_array_equal(decoded.state["w"], state["w"])
    # A drawn -0.0 is kept, too: its sign is a bit.
    assert [weight.kept for weight in decoded.header.weights] == [np.count_nonzero(tensor.view(np.uint32))]


def test_lossless_frame_decodes_to_the_very_tensors_that_were_encoded() -> None:
    decoded = encode(SMALL).decoded
    assert all(decoded[name] is SMALL[name] for name in SMALL)


# ---- with a base -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), density=st.sampled_from([0.02, 0.3, 0.7, 1.0]), dropped=st.floats(0, 0.9))
def test_receiver_ends_with_exactly_what_the_sender_was_told(
    codec: Codec, seed: int, density: float, dropped: float
) -> None:
    base, state = trained_pair(seed, density=density, dropped=dropped)
    encoded = encode(state, base, codec)
    frame = decode_frame(encoded.frame, shapes_of(state), base)
    assert bits(frame.state) == bits(dict(encoded.decoded))
    assert frame.header.codec == codec


@pytest.mark.parametrize("codec", CODECS)
def test_nested_mask_is_told_by_what_was_dropped(codec: Codec) -> None:
    base, state = trained_pair()
    header = read_header(encode(state, base, codec).frame)
    assert [weight.mask for weight in header.weights] == [Mask.DROPPED]
    assert header.mask_bytes < 0.1 * read_header(encode(state).frame).mask_bytes


def test_entry_that_the_base_lacks_travels_with_a_full_mask() -> None:
    base, state = trained_pair()
    grown = state["conv.weight"].reshape(-1)
    grown[np.flatnonzero(base["conv.weight"].reshape(-1) == 0)[0]] = 1.0
    encoded = encode(state, base)
    assert [weight.mask for weight in read_header(encoded.frame).weights] == [Mask.KEPT]
    assert bits(decode_frame(encoded.frame, shapes_of(state), base).state) == bits(state)


def test_dense_base_gives_a_full_mask_and_differences() -> None:
    base, _ = trained_pair(density=1.0, dropped=0.0)
    state = {**base, "conv.weight": np.where(np.abs(base["conv.weight"]) > 2, base["conv.weight"], np.float32(0))}
    weight = read_header(encode(state, base).frame).weights[0]
    assert (weight.mask, weight.difference) == (Mask.KEPT, True)


@pytest.mark.parametrize(("share", "mask"), [(0.2, Mask.KEPT), (0.8, Mask.ZEROS), (1.0, Mask.ALL)])
def test_full_mask_lists_whichever_is_rarer(share: float, mask: Mask) -> None:
    tensor = (np.arange(1000) < 1000 * share).astype(np.float32)
    assert [weight.mask for weight in read_header(encode({"w": tensor}).frame).weights] == [mask]


def test_tensor_that_the_base_lacks_travels_on_its_own() -> None:
    base, state = trained_pair()
    del base["bn.bias"]
    encoded = encode(state, base)
    assert [other.difference for other in read_header(encoded.frame).others] == [False]
    assert bits(decode_frame(encoded.frame, shapes_of(state), base).state) == bits(state)


def test_base_that_is_not_needed_is_ignored() -> None:
    base, state = trained_pair()
    assert bits(decode_frame(encode(state).frame, shapes_of(state), base).state) == bits(state)


@pytest.mark.parametrize("codec", CODECS)
def test_difference_without_its_base_asks_for_a_full_frame(codec: Codec) -> None:
    base, state = trained_pair()
    with pytest.raises(FrameError, match="difference to model 'abababababab', which is not at hand; ask for a full"):
        decode_frame(encode(state, base, codec).frame, shapes_of(state))


def altered(base: State, name: str) -> State:
    """The base with one of its entries nudged."""
    changed = base[name].copy()
    changed.reshape(-1)[np.flatnonzero(changed)[-1]] *= np.float32(1.5)
    return {**base, name: changed}


@pytest.mark.parametrize("name", ["conv.weight", "bn.bias"])
@pytest.mark.parametrize("codec", CODECS)
def test_another_base_is_found_out(codec: Codec, name: str) -> None:
    base, state = trained_pair()
    with pytest.raises(FrameError, match="another model"):
        decode_frame(encode(state, base, codec).frame, shapes_of(state), altered(base, name))


def test_base_with_another_mask_is_found_out() -> None:
    base, state = trained_pair()
    rolled = {**base, "conv.weight": np.roll(base["conv.weight"], 1)}
    with pytest.raises(FrameError, match="another model"):
        decode_frame(encode(state, base).frame, shapes_of(state), rolled)


def test_base_that_lacks_a_tensor_is_refused() -> None:
    base, state = trained_pair()
    with pytest.raises(FrameError, match=r"base lacks conv\.weight"):
        decode_frame(encode(state, base).frame, shapes_of(state), {"bn.bias": base["bn.bias"]})


def test_base_of_another_shape_is_refused_on_both_sides() -> None:
    base, state = trained_pair()
    frame = encode(state, base).frame
    flat = {**base, "conv.weight": base["conv.weight"].reshape(-1)}
    with pytest.raises(FrameError, match=r"base has conv\.weight with shape"):
        encode(state, flat)
    with pytest.raises(FrameError, match=r"base has conv\.weight with shape"):
        decode_frame(frame, shapes_of(state), flat)


# ---- with loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_lossy_codec_touches_weights_only(codec: Codec) -> None:
    base, state = trained_pair()
    decoded = encode(state, base, codec).decoded
    np.testing.assert_array_equal(decoded["bn.bias"], state["bn.bias"])
    assert (decoded["conv.weight"] != state["conv.weight"]).any()


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_lossy_codec_brings_no_dropped_entry_back(codec: Codec) -> None:
    base, state = trained_pair()
    # Pruning by a product with a mask leaves zeros of both signs.
    state["conv.weight"] *= np.where(np.random.default_rng(1).random(state["conv.weight"].shape) < 0.5, 1, -1)
    decoded = encode(state, base, codec).decoded["conv.weight"]
    assert not decoded[state["conv.weight"] == 0].view(np.uint32).any()


def test_bf16_is_within_half_a_unit_of_its_last_place() -> None:
    base, state = trained_pair()
    decoded = encode(state, base, "bf16").decoded["conv.weight"]
    np.testing.assert_allclose(decoded, state["conv.weight"], rtol=2.0**-8)


def test_bf16_does_not_depend_on_the_base() -> None:
    base, state = trained_pair()
    first, second = (encode(state, each, "bf16").decoded for each in (base, None))
    assert bits(dict(first)) == bits(dict(second))


def test_int8_is_within_half_a_step() -> None:
    base, state = trained_pair()
    encoded = encode(state, base, "int8")
    kept = state["conv.weight"] != 0
    largest = np.abs(state["conv.weight"] - base["conv.weight"])[kept].max()
    error = np.abs(encoded.decoded["conv.weight"] - state["conv.weight"]).max()
    assert error <= largest / 127 / 2 * 1.001
    assert read_header(encoded.frame).weights[0].scale == np.float32(largest / np.float32(127))


def test_entry_that_is_rounded_to_zero_keeps_its_place_in_the_mask() -> None:
    tiny = np.array([1e-44, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=np.float32)
    encoded = encode({"w": tiny}, codec="bf16")
    assert encoded.decoded["w"].tolist() == [0, 0, 1, 0, 0, 0]
    assert read_header(encoded.frame).weights[0].kept == 2


def test_int8_without_a_base_is_refused() -> None:
    with pytest.raises(FrameError, match=r"conv\.weight cannot travel as int8: there is no base"):
        encode(SMALL, codec="int8")


def test_int8_of_a_value_that_is_not_finite_is_refused() -> None:
    base, state = trained_pair()
    state["conv.weight"].reshape(-1)[np.flatnonzero(state["conv.weight"])[0]] = np.nan
    with pytest.raises(FrameError, match=r"conv\.weight cannot travel as int8: a value or a scale is NaN"):
        encode(state, base, "int8")


# ---- size and memory -------------------------------------------------------------------------------------------------


def test_zeros_do_not_travel() -> None:
    state = {"w": np.zeros(100_000, dtype=np.float32)}
    state["w"][::100] = 1.0
    assert len(encode(state).frame) < 2000


def test_each_codec_and_the_base_save_bytes() -> None:
    base, state = trained_pair(density=0.5)
    full, near = len(encode(state).frame), len(encode(state, base).frame)
    bf16, int8 = len(encode(state, base, "bf16").frame), len(encode(state, base, "int8").frame)
    assert dense_bytes(state) > 1.8 * full
    assert full > 1.2 * near
    assert near > 3 * max(bf16, int8)


def test_decoding_takes_the_state_and_memory_for_what_is_kept() -> None:
    rng = np.random.default_rng(0)
    base = {"w": np.zeros(1_000_000, dtype=np.float32)}
    base["w"][rng.choice(1_000_000, 10_000, replace=False)] = rng.standard_normal(10_000)
    state = {"w": (base["w"] * 1.01).astype(np.float32)}
    frame = encode(state, base, "bf16").frame
    decode_frame(frame, {"w": (1_000_000,)}, base)
    tracemalloc.start()
    decode_frame(frame, {"w": (1_000_000,)}, base)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 1_000_000 + 60 * 10_000


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_decoded_tensors_are_writable_and_own_their_memory() -> None:
    base, pruned = trained_pair()
    for state, near in ((SMALL, None), (pruned, base)):
        for tensor in decode_frame(encode(state, near).frame, shapes_of(state), near).state.values():
            tensor += 1
    assert SMALL["bn.bias"].tolist() == [0.25]


def test_non_contiguous_and_float64_input_is_encoded_by_value() -> None:
    tensor = np.arange(12, dtype=np.float64).reshape(3, 4).T
    frame = encode({"w": tensor.astype(np.float32)}).frame
    assert encode({"w": tensor}).frame == frame  # type: ignore[dict-item]
    np.testing.assert_array_equal(decode_frame(frame, {"w": (4, 3)}).state["w"], tensor)


def test_same_state_gives_same_bytes_whatever_the_order_of_names() -> None:
    assert encode(dict(reversed(SMALL.items()))).frame == encode(SMALL).frame


def test_header_says_whose_update_it_is() -> None:
    header = read_header(encode(SMALL).frame)
    assert (header.run, header.round, header.base_id, header.codec) == ("demo", 3, BASE_ID, "lossless")
    assert header.shapes == shapes_of(SMALL)


def test_header_with_many_names_is_compressed() -> None:
    state = {f"layer{index}.bn.bias": np.zeros(1, dtype=np.float32) for index in range(200)}
    frame = encode(state).frame
    assert len(frame) < 1000
    assert bits(decode_frame(frame, shapes_of(state)).state) == bits(state)


FRAME = encode(SMALL).frame


@pytest.mark.parametrize("length", range(len(FRAME)))
def test_a_frame_cut_at_any_length_is_refused(length: int) -> None:
    with pytest.raises(FrameError):
        decode_frame(FRAME[:length], shapes_of(SMALL))


def test_a_flip_of_any_bit_is_noticed() -> None:
    for position in range(8 * len(FRAME)):
        flipped = bytearray(FRAME)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(FrameError):
            decode_frame(bytes(flipped), shapes_of(SMALL))


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(FrameError):
        decode_frame(FRAME + b"\0", shapes_of(SMALL))


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"SEF1"])
def test_something_else_entirely_is_named_as_such(start: bytes) -> None:
    with pytest.raises(FrameError, match="not a frame, or of another version"):
        read_header(start + bytes(100))
