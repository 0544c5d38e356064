import numpy as np
import pytest

from sparsyedge.edge.tensors import State, count_nonzero, dense_bytes, first_nonfinite, global_sparsity, model_id


def state() -> State:
    return {
        "w": np.array([[0.0, 1.0], [2.0, 0.0]], dtype=np.float32),
        "b": np.array([0.5, 0.0, -0.5], dtype=np.float32),
    }


def test_identity_does_not_depend_on_the_order_of_names() -> None:
    assert model_id(state()) == model_id(dict(reversed(state().items())))


def test_identity_is_pinned() -> None:
    assert model_id(state()) == "0f63cb14a05f05e6900fb709f8a7dc88a0b9c9d1edc99629d3afd2044aa45564"


def test_identity_depends_on_every_value_shape_and_name() -> None:
    moved, reshaped, renamed = state(), state(), state()
    moved["w"][0, 1] = np.nextafter(np.float32(1.0), np.float32(2.0))
    reshaped["w"] = reshaped["w"].reshape(4)
    renamed["v"] = renamed.pop("w")
    assert len({model_id(each) for each in (state(), moved, reshaped, renamed)}) == 4


def test_identity_is_that_of_the_values_and_not_of_their_layout() -> None:
    transposed = state()
    transposed["w"] = np.asfortranarray(transposed["w"])
    assert model_id(transposed) == model_id(state())


def test_counts() -> None:
    assert dense_bytes(state()) == 28
    assert count_nonzero(state(), ["w"]) == 2
    assert count_nonzero(state(), ["w", "b"]) == 4
    assert global_sparsity(state(), ["w"]) == 0.5
    assert global_sparsity(state(), []) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_tensor_is_named(bad: float) -> None:
    broken = state()
    broken["b"][1] = bad
    assert first_nonfinite(broken) == "b"
    assert first_nonfinite(state()) is None
