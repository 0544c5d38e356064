import numpy as np
import pytest
from fixtures.forgeries import FORGERIES, SHAPES, Forge, Forgery
from fixtures.forgeries import base as forged_base
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.codecs import CODECS, Codec
from sparsyedge.edge.wire.envelope import Mask
from sparsyedge.edge.wire.flat_frame import FlatBase, FlatUpdate, decode_flat, flatten
from sparsyedge.edge.wire.flat_layout import FlatLayout
from sparsyedge.edge.wire.frame import decode_frame, encode_frame, read_header

patterns = st.one_of(st.just(0), st.just(0x80000000), st.just(0x7FC00001), st.integers(0, 2**32 - 1))
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
any_floats = hnp.arrays(np.uint32, shapes, elements=patterns).map(lambda array: array.view(np.float32))
any_states = st.dictionaries(st.text(min_size=0, max_size=12), any_floats, max_size=5)


def layout_of(state: State) -> FlatLayout:
    return FlatLayout.of({name: tensor.shape for name, tensor in state.items()}, [n for n in state if "w" in n])


def frame_of(state: State, base: State | None = None, codec: Codec = "lossless") -> bytes:
    prunable = layout_of(state).weights
    return encode_frame(state, run="r", round_number=1, base_id="00", base=base, codec=codec, prunable=prunable).frame


def bits(state: State) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (tensor.shape, tensor.tobytes()) for name, tensor in sorted(state.items())}


def assert_same(update: FlatUpdate, layout: FlatLayout, expected: State) -> None:
    assert bits(dict(update.tensors(layout))) == bits(expected)
    assert update.positions is None or bool(np.all(np.diff(update.positions.astype(np.int64)) > 0))


def trained_pair(density: float, *, dropped: float = 0.05, regrown: int = 0) -> tuple[State, State]:
    rng = np.random.default_rng(3)
    base: State = {"bn.bias": rng.standard_normal(64, dtype=np.float32)}
    moved: State = {"bn.bias": base["bn.bias"] + np.float32(0.01)}
    for name, shape in (("a.weight", (64, 16, 3, 3)), ("b.weight", (10, 64)), ("empty.weight", (0, 3))):
        weight = rng.standard_normal(shape, dtype=np.float32)
        weight[rng.random(shape) >= density] = 0
        base[name] = weight
        moved[name] = weight * (1 + 0.02 * rng.standard_normal(shape, dtype=np.float32))
        moved[name][(moved[name] != 0) & (rng.random(shape) < dropped)] = 0
        moved[name].reshape(-1)[:regrown] = 1.5
    return base, moved


@settings(max_examples=150, deadline=None)
@given(any_states)
def test_the_entries_of_any_frame_are_those_of_its_dense_tensors(state: State) -> None:
    layout = layout_of(state)
    _, update = decode_flat(frame_of(state), layout)
    assert_same(update, layout, state)


@settings(max_examples=150, deadline=None)
@given(any_states, st.data())
def test_so_are_those_of_a_difference_to_any_base(state: State, data: st.DataObject) -> None:
    base = {
        name: data.draw(hnp.arrays(np.uint32, tensor.shape, elements=patterns)).view(np.float32)
        for name, tensor in state.items()
    }
    layout = layout_of(state)
    _, update = decode_flat(frame_of(state, base), layout, FlatBase.of(layout, base))
    assert_same(update, layout, state)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("density", "dropped", "regrown", "mask"),
    [
        (0.1, 0.05, 0, Mask.DROPPED),
        (0.1, 0.9, 0, Mask.KEPT),
        (0.1, 0.05, 7, Mask.KEPT),
        (1.0, 0.0, 0, Mask.ALL),
        (1.0, 0.3, 0, Mask.DROPPED),
        (0.7, 0.05, 9, Mask.ZEROS),
    ],
)
def test_every_kind_of_mask_in_every_codec_decodes_to_the_same_bits(
    codec: Codec, density: float, dropped: float, regrown: int, mask: Mask
) -> None:
    base, state = trained_pair(density, dropped=dropped, regrown=regrown)
    frame, layout = frame_of(state, base, codec), layout_of(state)
    assert read_header(frame).weights[0].mask is mask
    header, update = decode_flat(frame, layout, FlatBase.of(layout, base))
    assert update.entries == header.entries
    assert_same(update, layout, decode_frame(frame, layout.shapes, base).state)


def test_a_base_whose_tensors_lie_in_one_array_is_not_copied() -> None:
    base, _ = trained_pair(0.1)
    layout = layout_of(base)
    views = layout.empty()
    for name, tensor in base.items():
        views[name][...] = tensor
    flat = FlatBase.of(layout, views)
    assert np.shares_memory(flat.weights, views["a.weight"])
    assert np.array_equal(flat.weights, FlatBase.of(layout, base).weights)


def test_an_update_keeps_memory_for_its_entries_alone() -> None:
    base, state = trained_pair(0.1)
    layout = layout_of(state)
    _, update = decode_flat(frame_of(state, base), layout, FlatBase.of(layout, base))
    assert update.positions is not None
    assert update.values.size == sum(int(np.count_nonzero(state[name])) for name in layout.weights)


def test_another_base_is_noticed() -> None:
    base, state = trained_pair(0.1)
    layout = layout_of(state)
    other = {name: tensor * np.float32(1.5) for name, tensor in base.items()}
    with pytest.raises(FrameError, match="the base at hand is another model"):
        decode_flat(frame_of(state, base), layout, FlatBase.of(layout, other))


def test_a_difference_without_a_base_is_refused() -> None:
    base, state = trained_pair(0.1)
    with pytest.raises(FrameError, match="not at hand"):
        decode_flat(frame_of(state, base), layout_of(state))


def test_a_frame_with_tensors_in_another_order_is_read_all_the_same() -> None:
    base, state = trained_pair(0.1)
    layout = layout_of(state)
    swapped = encode_frame(state, run="r", round_number=1, base_id="00", base=base, prunable=["b.weight"]).frame
    _, update = decode_flat(swapped, layout, FlatBase.of(layout, base))
    assert_same(update, layout, state)


def test_a_state_flattens_to_the_entries_of_its_frame() -> None:
    _, state = trained_pair(0.1)
    layout = layout_of(state)
    assert_same(flatten(state, layout), layout, state)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forged_frame_is_refused_with_the_sentence_of_the_dense_way(forge: Forge) -> None:
    forgery = Forgery()
    forge(forgery)
    frame, layout = forgery.seal(), FlatLayout.of(SHAPES, ["w"])
    with pytest.raises(FrameError) as dense:
        decode_frame(frame, SHAPES, forged_base())
    with pytest.raises(FrameError) as flat:
        decode_flat(frame, layout, FlatBase.of(layout, forged_base()))
    # zstd's own words after the colon depend on how far it was read.
    assert str(flat.value).partition("decompressed")[0] == str(dense.value).partition("decompressed")[0]
