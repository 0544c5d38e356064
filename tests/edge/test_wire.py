import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire import decode_frame, encode_frame, read_header

BASE = "ab" * 32
# Small enough that zstd stores its sections as they are: these bytes do not depend on the version of the library.
GOLDEN_STATE: State = {
    "conv.weight": np.array([[0.0, 1.5], [-2.0, 0.0]], dtype=np.float32),
    "bn.bias": np.array([0.25], dtype=np.float32),
}
GOLDEN_FRAME = bytes.fromhex(
    "534546319700000086a372756ea464656d6fa5726f756e6403a462617365d9406162616261626162616261626162616261626162"
    "6162616261626162616261626162616261626162616261626162616261626162616261626162616261626162a774656e736f7273"
    "9293a7626e2e6269617391010193ab636f6e762e77656967687492020202aa6d61736b5f62797465730aab76616c75655f627974"
    "65731528b52ffd20010900000628b52ffd200c61000000000000000080c0003e3fc033add0c78a71698ea3986ee647dc75723e5c"
    "023e0d04d20346ec049c1a1527b2"
)


def shapes_of(state: State) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in state.items()}


def encode(state: State) -> bytes:
    return encode_frame(state, run="demo", round_number=3, base=BASE)


def bits(tensor: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    return tensor.astype("<f4").tobytes()


# Any 32 bits are a float32: NaN payloads, infinities, subnormals and negative zeros included.
any_floats = hnp.arrays(
    np.uint32,
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7),
    elements=st.one_of(st.just(0), st.just(0x80000000), st.just(0x7FC00001), st.integers(0, 2**32 - 1)),
).map(lambda array: array.view(np.float32))
any_states = st.dictionaries(st.text(min_size=0, max_size=12), any_floats, max_size=5)


@settings(max_examples=200, deadline=None)
@given(any_states)
def test_every_bit_of_any_state_survives_the_wire(state: State) -> None:
    frame = decode_frame(encode(state), shapes_of(state))
    assert set(frame.state) == set(state)
    for name, tensor in state.items():
        assert frame.state[name].shape == tensor.shape
        assert frame.state[name].dtype == np.float32
        assert bits(frame.state[name]) == bits(tensor)
    assert model_id(frame.state) == model_id(state)


@settings(max_examples=30, deadline=None)
@given(density=st.floats(0, 1), size=st.integers(0, 5000), seed=st.integers(0, 2**32 - 1))
def test_every_density_survives_the_wire(density: float, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensor = np.where(rng.random(size) < density, rng.standard_normal(size, dtype=np.float32), np.float32(0))
    state = {"w": tensor, "b": np.zeros(3, dtype=np.float32)}
    decoded = decode_frame(encode(state), shapes_of(state))
    np.testing.assert_array_equal(decoded.state["w"], state["w"])
    assert [entry.kept for entry in decoded.header.tensors] == [0, np.count_nonzero(tensor)]


def test_zeros_do_not_travel() -> None:
    state = {"w": np.zeros(100_000, dtype=np.float32)}
    state["w"][::100] = 1.0
    assert len(encode(state)) < 2000


def test_decoded_tensors_are_writable_and_own_their_memory() -> None:
    state = decode_frame(encode(GOLDEN_STATE), shapes_of(GOLDEN_STATE)).state
    for tensor in state.values():
        tensor += 1


def test_non_contiguous_and_float64_input_is_encoded_by_value() -> None:
    tensor = np.arange(12, dtype=np.float64).reshape(3, 4).T
    frame = encode({"w": tensor.astype(np.float32)})
    assert encode({"w": tensor}) == frame  # type: ignore[dict-item]
    np.testing.assert_array_equal(decode_frame(frame, {"w": (4, 3)}).state["w"], tensor)


def test_same_state_gives_same_bytes_whatever_the_order_of_names() -> None:
    assert encode(dict(reversed(GOLDEN_STATE.items()))) == encode(GOLDEN_STATE)


def test_header_says_whose_update_it_is() -> None:
    header = read_header(encode(GOLDEN_STATE))
    assert (header.run, header.round, header.base) == ("demo", 3, BASE)


def test_golden_frame_is_still_written_and_read() -> None:
    assert (
        hashlib.sha256(GOLDEN_FRAME).hexdigest() == "60788f5a829a2d37372402174dec80ca8f7760d5a819703a00f93aceb331305d"
    )
    assert encode(GOLDEN_STATE) == GOLDEN_FRAME
    decoded = decode_frame(GOLDEN_FRAME, shapes_of(GOLDEN_STATE)).state
    assert {name: bits(tensor) for name, tensor in decoded.items()} == {
        name: bits(tensor) for name, tensor in GOLDEN_STATE.items()
    }


@pytest.mark.parametrize("length", range(len(GOLDEN_FRAME)))
def test_a_frame_cut_at_any_length_is_refused(length: int) -> None:
    with pytest.raises(FrameError):
        decode_frame(GOLDEN_FRAME[:length], shapes_of(GOLDEN_STATE))


def test_a_flip_of_any_bit_is_noticed() -> None:
    for position in range(8 * len(GOLDEN_FRAME)):
        altered = bytearray(GOLDEN_FRAME)
        altered[position // 8] ^= 1 << position % 8
        with pytest.raises(FrameError):
            decode_frame(bytes(altered), shapes_of(GOLDEN_STATE))


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(FrameError):
        decode_frame(GOLDEN_FRAME + b"\0", shapes_of(GOLDEN_STATE))


def test_something_else_entirely_is_named_as_such() -> None:
    with pytest.raises(FrameError, match="not a frame, or of another version"):
        read_header(b"PK\x03\x04" + bytes(100))
