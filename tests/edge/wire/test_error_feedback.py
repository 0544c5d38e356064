import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsyedge.edge.tensors import State, Tensors
from sparsyedge.edge.wire.codecs import Codec
from sparsyedge.edge.wire.error_feedback import Coded, compensate, encode_with_feedback, unpack_residual

lossy = st.sampled_from(["bf16", "int8"])
seeds = st.integers(0, 2**32 - 1)


def sparse_state(rng: np.random.Generator, density: float = 0.5) -> State:
    weight = rng.standard_normal((8, 25), dtype=np.float32) * (rng.random((8, 25)) < density)
    return {"w": weight.astype(np.float32), "b": rng.standard_normal(8, dtype=np.float32)}


def encode(state: Tensors, base: State, codec: Codec, residual: Tensors | None = None) -> Coded:
    return encode_with_feedback(
        state, residual or {}, run="r", round_number=1, base_id="00", base=base, codec=codec, prunable=["w"]
    )


def residual_of(coded: Coded) -> Tensors:
    return unpack_residual(coded.residual, {"w": (8, 25)})


def test_without_a_residual_the_state_is_sent_as_it_is() -> None:
    state = sparse_state(np.random.default_rng(0))
    sent = compensate(state, {}, ["w"])
    assert all(sent[name] is state[name] for name in state)


def test_the_state_that_was_trained_is_not_changed() -> None:
    state = sparse_state(np.random.default_rng(0))
    before = state["w"].copy()
    compensate(state, {"w": np.ones_like(before)}, ["w"])
    np.testing.assert_array_equal(state["w"], before)


def test_where_nothing_is_lost_or_no_weight_is_there_to_lose_it_there_is_no_residual() -> None:
    state = sparse_state(np.random.default_rng(3))
    assert encode(state, state, "lossless").residual == b""
    assert encode({"b": state["b"]}, {"b": state["b"]}, "bf16").residual == b""
    assert unpack_residual(b"", {"w": (8, 25)}) == {}


@settings(deadline=None)
@given(seed=seeds, codec=lossy, density=st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_the_residual_is_bit_for_bit_what_the_receiver_lacks_of_the_kept_entries(
    seed: int, codec: Codec, density: float
) -> None:
    rng = np.random.default_rng(seed)
    base, state = sparse_state(rng, density=1.0), sparse_state(rng, density)
    coded = encode(state, base, codec)
    lacking = np.where(state["w"] == 0, np.float32(0), state["w"] - coded.decoded["w"])
    assert set(residual_of(coded)) == {"w"}
    assert residual_of(coded)["w"].tobytes() == lacking.tobytes()
    assert lacking.any() == (density > 0)


@settings(deadline=None)
@given(seed=seeds)
def test_compensation_neither_makes_nor_ends_an_entry(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = sparse_state(rng)
    # The negated state would cancel every entry exactly.
    for residual in (rng.standard_normal((8, 25), dtype=np.float32), -state["w"]):
        sent = compensate(state, {"w": residual}, ["w"])
        np.testing.assert_array_equal(sent["w"] != 0, state["w"] != 0)


def test_drift_that_every_update_rounds_away_arrives_with_feedback() -> None:
    rng = np.random.default_rng(7)
    start = sparse_state(rng)
    kept = start["w"] != 0
    # One large move sets the step of int8 to 1/127; the drift of 1/1000 per round is far below half of that.
    drift = np.where(kept, np.float32(0.001), np.float32(0))
    loud = np.flatnonzero(kept)[0]
    with_feedback, without = start, start
    residual: Tensors = {}
    for number in range(50):
        move = drift.copy()
        move.reshape(-1)[loud] = 1.0 if number % 2 == 0 else -1.0
        coded = encode({"w": with_feedback["w"] + move, "b": start["b"]}, with_feedback, "int8", residual)
        residual, with_feedback = residual_of(coded), dict(coded.decoded)
        without = dict(encode({"w": without["w"] + move, "b": start["b"]}, without, "int8").decoded)
    quiet = kept.copy()
    quiet.reshape(-1)[loud] = False
    wanted = start["w"] + 50 * drift
    assert np.abs(with_feedback["w"] - wanted)[quiet].max() < 0.006
    np.testing.assert_allclose(without["w"][quiet], start["w"][quiet])
