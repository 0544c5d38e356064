"""Reads tensors from files of other programs: .npz through numpy, .safetensors by hand.

We read names, shapes and types before any values, so unwanted tensors take no memory.

    .safetensors: u64 bytes of the header | header, JSON: name -> {dtype, shape, data_offsets} | values
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.tensors import FloatArray

__all__ = ["WEIGHT_FILES", "StoredTensor", "open_weights"]

MAX_HEADER_BYTES = 16 << 20
"""Far more than any model needs. We refuse a bogus length before allocating memory for it."""


class StoredTensor(NamedTuple):
    """A tensor in a file, not read yet."""

    dtype: str
    """The format's own name for the type."""
    shape: tuple[int, ...]
    read: Callable[[], FloatArray] | None
    """Reads its values as float32; None if they are not floating-point numbers."""


def open_weights(path: Path) -> Mapping[str, StoredTensor]:
    """Return a file's tensors by name; raises ConfigError, here or in `read`, if the file does not match its suffix."""
    suffix = path.suffix.lower()
    tensors = _guarded(suffix, WEIGHT_FILES[suffix], path)
    return {
        name: tensor._replace(read=partial(_guarded, suffix, tensor.read)) if tensor.read else tensor
        for name, tensor in tensors.items()
    }


def _guarded(suffix: str, read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,  # also from numpy and UTF-8 decoding
        struct.error,
        zlib.error,
        zipfile.BadZipFile,
        RuntimeError,  # encrypted, unsupported compression, or nested too deeply
        msgspec.DecodeError,
    ) as error:
        raise ConfigError(f"it cannot be read as a {suffix} file: {error}; write it again") from error


# ---- .npz ------------------------------------------------------------------------------------------------------------


def _open_npz(path: Path) -> dict[str, StoredTensor]:
    with zipfile.ZipFile(path) as archive:
        return {
            member.removesuffix(".npy"): _npz_tensor(archive, path, member)
            for member in archive.namelist()
            if member.endswith(".npy")
        }


def _npz_tensor(archive: zipfile.ZipFile, path: Path, member: str) -> StoredTensor:
    with archive.open(member) as file:
        shape, dtype = _npy_header(file)
    return StoredTensor(str(dtype), shape, partial(_read_npy, path, member) if dtype.kind == "f" else None)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _read_npy(path: Path, member: str) -> FloatArray:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        return _as_float32(np.lib.format.read_array(file, allow_pickle=False))


# ---- .safetensors ----------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, frozen=True):
    """One tensor of a header."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""How numpy reads them; bfloat16 is the upper half of a float32."""


def _open_safetensors(path: Path) -> dict[str, StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(f"its header has {header_bytes} bytes by its own account, the file has {size}")
        header = msgspec.json.decode(file.read(header_bytes), type=dict[str, msgspec.Raw])
    begin = 8 + header_bytes
    entries = {
        name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items() if name != "__metadata__"
    }
    return {name: _safetensor(path, name, entry, begin, size) for name, entry in entries.items()}


def _safetensor(path: Path, name: str, entry: _Entry, begin: int, size: int) -> StoredTensor:
    kind = FLOATS.get(entry.dtype)
    if kind is None:
        return StoredTensor(entry.dtype, entry.shape, None)
    start, stop = entry.data_offsets
    wanted = math.prod(entry.shape) * np.dtype(kind).itemsize
    if stop - start != wanted or begin + stop > size:
        raise ValueError(
            f"tensor {name} of {entry.dtype} {entry.shape} needs {wanted} bytes and is at {start} to {stop} of the "
            f"{size - begin} that the file has"
        )
    return StoredTensor(entry.dtype, entry.shape, partial(_read_safetensor, path, begin + start, kind, entry.shape))


def _read_safetensor(path: Path, offset: int, kind: str, shape: tuple[int, ...]) -> FloatArray:
    values: NDArray[Any] = np.fromfile(path, dtype=kind, count=math.prod(shape), offset=offset)
    if kind == FLOATS["BF16"]:
        values = (values.astype("<u4") << 16).view("<f4")
    return _as_float32(values.reshape(shape))


def _as_float32(values: NDArray[Any]) -> FloatArray:
    # Values beyond float32 become infinite, and the caller refuses those.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


WEIGHT_FILES: dict[str, Callable[[Path], dict[str, StoredTensor]]] = {
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
}
"""The function that opens each kind of file, by suffix."""
