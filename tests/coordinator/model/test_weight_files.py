"""Tensor files of other programs: well-formed ones from the real writers, and malformed ones."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sparsyedge.coordinator.model.weight_files import open_weights
from sparsyedge.edge.errors import ConfigError

VALUES = torch.tensor([[0.5, -2.0, 0.0], [1.5, 3.0, -0.25]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_safetensors_of_every_float_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    stored = {"w": VALUES.to(dtype), "count": torch.tensor(7), "b": torch.arange(3).to(dtype)}
    save_file(stored, path, metadata={"format": "pt"})
    tensors = open_weights(path)
    assert set(tensors) == {"w", "count", "b"}
    assert (tensors["w"].shape, tensors["count"].shape) == ((2, 3), ())
    assert tensors["count"].read is None
    assert tensors["w"].read is not None
    found = tensors["w"].read()
    assert found.dtype == np.float32
    assert found.tolist() == VALUES.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_of_every_float_are_read(dtype: type, save: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save(path, **{"layer.0.w": VALUES.numpy().astype(dtype), "count": np.int64(7)})
    tensors = open_weights(path)
    assert tensors["count"].read is None
    assert tensors["layer.0.w"].read is not None
    assert tensors["layer.0.w"].read().tolist() == VALUES.tolist()


def header_of(entry: object, values: bytes = bytes(8)) -> bytes:
    header = json.dumps({"w": entry}).encode()
    return struct.pack("<Q", len(header)) + header + values


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "requires a buffer of 8 bytes"),
        (struct.pack("<Q", 1 << 60) + b"{}", "header has 1152921504606846976 bytes by its own account"),
        (struct.pack("<Q", 6) + b"[1, 2]", "Expected `object`"),
        (struct.pack("<Q", 40_000) + b"[" * 40_000, ""),
        (header_of({"dtype": "F32", "shape": [2]}), "missing required field `data_offsets`"),
        (header_of({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}), "Expected `int` >= 0"),
        (header_of({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}), "needs 12 bytes and is at 0 to 8 of the 8"),
        (
            header_of({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}),
            "needs 8 bytes and is at 4 to 12 of the 8",
        ),
        (header_of({"dtype": "F32", "shape": [10**30], "data_offsets": [0, 8]}), "is at 0 to 8 of the 8"),
    ],
)
def test_files_that_are_no_safetensors_are_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"it cannot be read as a .safetensors file: .*{reason}"):
        open_weights(path)


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"cannot be read as a .npz file: File is not a zip file"):
        open_weights(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", b"no array")
    with pytest.raises(ConfigError, match=r"cannot be read as a .npz file: .*magic string"):
        open_weights(path)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, w=np.array([{}], dtype=object))
    assert open_weights(path)["w"].read is None


def test_a_tensor_that_is_cut_short_is_refused_when_it_is_read(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.npz", tmp_path / "model.npz"
    np.savez(whole, w=np.ones(1000, np.float32))
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        target.writestr("w.npy", source.read("w.npy")[:-100])
    tensor = open_weights(path)["w"]
    assert tensor.shape == (1000,)
    assert tensor.read is not None
    with pytest.raises(ConfigError, match=r"cannot be read as a .npz file"):
        tensor.read()
