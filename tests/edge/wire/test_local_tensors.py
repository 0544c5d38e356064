"""Tensors in files of our own come back bit for bit, and damaged ones are refused."""

from __future__ import annotations

import numpy as np
import pytest

from sparsyedge.edge.errors import DamagedFileError
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire import local_tensors
from sparsyedge.edge.wire.frame import frame_of
from sparsyedge.edge.wire.local_tensors import open_tensors, pack_tensors

RNG = np.random.default_rng(0)


def sparse(shape: tuple[int, ...], density: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = RNG.standard_normal(shape, dtype=np.float32)
    values[RNG.random(shape) >= density] = 0
    return values


STATE: State = {
    "sparse": sparse((16, 8, 3, 3), 0.05),
    "half": sparse((40, 50), 0.5),
    "few zeros": sparse((300,), 0.95),
    "dense": sparse((64,), 1.0),
    "zeros": np.zeros((7, 7), dtype=np.float32),
    "odd": np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45], dtype=np.float32),
    "one": np.array(2.5, dtype=np.float32),
    "none": np.zeros((0, 3), dtype=np.float32),
}
SHAPES = {name: tensor.shape for name, tensor in STATE.items()}


def test_tensors_and_note_come_back_bit_for_bit() -> None:
    opened = open_tensors(pack_tensors(STATE, note=b"epoch 2"))
    assert opened.note == b"epoch 2"
    again = opened.tensors(SHAPES)
    assert set(again) == set(STATE)
    for name, tensor in STATE.items():
        assert again[name].shape == tensor.shape
        assert again[name].tobytes() == tensor.tobytes(), name


def test_the_same_tensors_give_the_same_bytes_in_any_order() -> None:
    assert pack_tensors(dict(reversed(STATE.items()))) == pack_tensors(STATE)


def test_zeros_take_hardly_any_space() -> None:
    weights = {f"layer{number}": sparse((64, 64, 3, 3), 0.05) for number in range(3)}
    frame = frame_of(weights, run="", round_number=0, base_id="", prunable=weights.keys())
    assert len(pack_tensors(weights)) < 1.02 * len(frame)


@pytest.mark.parametrize("place", [0, 4, 6, 12, 100, -40, -1])
def test_a_byte_that_changed_anywhere_is_noticed(place: int) -> None:
    content = bytearray(pack_tensors(STATE))
    content[place] ^= 1
    with pytest.raises(DamagedFileError):
        open_tensors(bytes(content))


@pytest.mark.parametrize("length", [0, 5, 41, 42, -1])
def test_content_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(DamagedFileError):
        open_tensors(pack_tensors(STATE)[:length])


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(local_tensors, "VERSION", 9)
        content = pack_tensors(STATE)
    with pytest.raises(DamagedFileError, match=r"version 9; this version of sparsyedge reads b'SELT', version 1"):
        open_tensors(content)


def test_a_frame_is_not_taken_for_a_file() -> None:
    frame = frame_of({"w": STATE["half"]}, run="", round_number=0, base_id="", prunable=["w"])
    with pytest.raises(DamagedFileError, match="packed tensors start with"):
        open_tensors(frame)


def test_tensors_of_another_model_are_refused() -> None:
    opened = open_tensors(pack_tensors(STATE))
    with pytest.raises(DamagedFileError, match=r"dense has shape \(64,\), wanted is \(65,\)"):
        opened.tensors({**SHAPES, "dense": (65,)})
    with pytest.raises(DamagedFileError, match=r"new has shape None, wanted is \(2,\)"):
        opened.tensors({**SHAPES, "new": (2,)})
