"""Checks of updates before averaging."""

from __future__ import annotations

import contextlib
import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsyedge.coordinator.aggregation.measures import measure
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.update_checks import max_update_bytes, nonzero_budget, verify_update
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.tensors import State, Tensors, model_id
from sparsyedge.edge.wire.flat_frame import decode_flat, flatten
from sparsyedge.edge.wire.frame import encode_frame

BASE = "a" * 64


@pytest.fixture
def pruned(initial: State, manifest: Manifest) -> State:
    return prune_global(initial, manifest.prunable, manifest.method.sparsity)


def frame_of(state: State, *, run: str = "r1", round_number: int = 3, base: str = BASE) -> bytes:
    return encode_frame(state, run=run, round_number=round_number, base_id=base, prunable=["fc.weight"]).frame


def verify(frame: bytes, manifest: Manifest, base: State | None = None) -> Tensors:
    zeros = {name: np.zeros(shape, dtype=np.float32) for name, shape in manifest.shapes.items()}
    start = RoundBase(manifest, layout_of(manifest), base or zeros)
    return verify_update(frame, start, run="r1", round_number=3, base_id=BASE).update.tensors(start.layout)


def test_a_good_update_comes_out_as_it_went_in(pruned: State, manifest: Manifest) -> None:
    assert model_id(verify(frame_of(pruned), manifest)) == model_id(pruned)


def test_the_budget_is_what_pruning_leaves(manifest: Manifest) -> None:
    assert nonzero_budget(manifest) == 1024


@pytest.mark.parametrize("wrong", [{"run": "r2"}, {"round_number": 4}, {"base": "b" * 64}])
def test_an_update_for_something_else_is_refused(pruned: State, manifest: Manifest, wrong: dict[str, str]) -> None:
    with pytest.raises(FrameError, match="wanted is run 'r1', round 3"):
        verify(frame_of(pruned, **wrong), manifest)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(pruned: State, manifest: Manifest, value: float) -> None:
    pruned["fc.bias"] = np.full_like(pruned["fc.bias"], value)
    with pytest.raises(FrameError, match=r"fc\.bias holds NaN or infinity"):
        verify(frame_of(pruned), manifest)


def test_a_negative_variance_is_refused(pruned: State, manifest: Manifest) -> None:
    pruned["bn.running_var"] = np.full_like(pruned["bn.running_var"], -0.1)
    with pytest.raises(FrameError, match=r"bn\.running_var holds a negative variance"):
        verify(frame_of(pruned), manifest)


@pytest.mark.parametrize("value", [0.5, -0.0])
def test_an_update_that_changes_what_is_frozen_is_refused(pruned: State, manifest: Manifest, value: float) -> None:
    parameters = tuple(
        msgspec.structs.replace(each, trainable=False, frozen=True) if each.name == "fc.bias" else each
        for each in manifest.parameters
    )
    frozen = msgspec.structs.replace(manifest, parameters=parameters)
    base = pruned | {"fc.bias": np.zeros_like(pruned["fc.bias"])}
    assert model_id(verify(frame_of(base), frozen, base)) == model_id(base)
    changed = base | {"fc.bias": np.full_like(pruned["fc.bias"], value)}
    with pytest.raises(FrameError, match=r"fc\.bias is another than in the round's model, though it is frozen"):
        verify(frame_of(changed), frozen, base)


def test_an_update_that_was_not_pruned_is_refused(initial: State, manifest: Manifest) -> None:
    with pytest.raises(FrameError, match=r"has 2048 non-zero weights, sparsity 0.5 allows 1024"):
        verify(frame_of(initial), manifest)


def test_zeros_that_an_update_lists_are_not_kept_beyond_the_budget(pruned: State, manifest: Manifest) -> None:
    # A lossless frame keeps -0.0 as a value, so this one lists every entry.
    pruned["fc.weight"][pruned["fc.weight"] == 0] = -0.0
    start = RoundBase(manifest, layout_of(manifest), pruned)
    found = verify_update(frame_of(pruned), start, run="r1", round_number=3, base_id=BASE)
    assert found.update.entries > 2000
    assert found.update.values.size == nonzero_budget(manifest)
    np.testing.assert_array_equal(found.update.tensors(start.layout)["fc.weight"], pruned["fc.weight"])


def test_a_missing_tensor_is_refused(pruned: State, manifest: Manifest) -> None:
    del pruned["fc.bias"]
    with pytest.raises(FrameError, match=r"lacks tensor fc\.bias"):
        verify(frame_of(pruned), manifest)


def test_no_frame_of_the_model_is_larger_than_the_cap(initial: State, manifest: Manifest) -> None:
    assert len(frame_of(initial)) < max_update_bytes(manifest)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(place=st.integers(0, 10_000), flipped=st.integers(1, 255))
def test_a_damaged_frame_with_a_right_digest_raises_nothing_but_frame_errors(
    pruned: State, manifest: Manifest, place: int, flipped: int
) -> None:
    body = bytearray(frame_of(pruned)[:-32])
    body[place % len(body)] ^= flipped
    with contextlib.suppress(FrameError):
        verify(bytes(body) + hashlib.sha256(body).digest(), manifest)


@pytest.mark.parametrize("kept", [0.1, 0.45, 0.8, 0.97, 1.0])
@pytest.mark.parametrize("is_difference", [False, True])
def test_an_update_is_measured_like_one_that_nobody_decoded(
    initial: State, manifest: Manifest, kept: float, is_difference: bool
) -> None:
    generous = msgspec.structs.replace(manifest, method=msgspec.structs.replace(manifest.method, sparsity=0.0))
    start = RoundBase(generous, layout_of(generous), initial)
    moved = {name: (tensor * np.float32(1.01)).astype(np.float32) for name, tensor in initial.items()}
    moved["fc.weight"][np.random.default_rng(5).random(moved["fc.weight"].shape) > kept] = 0
    base = initial if is_difference else None
    frame = encode_frame(moved, run="r1", round_number=3, base_id=BASE, base=base, prunable=["fc.weight"]).frame
    found = verify_update(frame, start, run="r1", round_number=3, base_id=BASE).measures

    # Against another object with the same model, nothing that decoding found is at hand.
    other, flat = RoundBase(generous, layout_of(generous), initial), flatten(moved, start.layout)
    near = other.near(flat)
    expected = measure(flat, other, other.products(flat, near)[0], near)
    assert found.change.tolist() == expected.change.tolist()
    assert found.kept == expected.kept
    figures = [found.pruned, found.l2, found.cosine]
    assert figures == pytest.approx([expected.pruned, expected.l2, expected.cosine], rel=1e-9)
    _, update = decode_flat(frame, start.layout, start.flat)
    zeros = {name: np.zeros_like(tensor) for name, tensor in initial.items()}
    third = RoundBase(generous, layout_of(generous), zeros)
    assert third.products(update)[0].difference[0] == pytest.approx(float((moved["fc.weight"] ** 2).sum()), rel=1e-5)
