"""Frames in files, for inspecting a run: model.frame, and the models and updates on devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire.envelope import read_header
from sparsyedge.edge.wire.frame import Frame, decode_frame

__all__ = ["read_frame"]

MOST_VALUES = 1 << 28
"""A gigabyte of float32. A frame without weights is small whatever shapes it claims, so we limit the claim here."""


def read_frame(path: Path | str, base: Mapping[str, FloatArray] | None = None) -> Frame:
    """The header and the tensors of a frame in a file; raises FrameError if it is damaged or lacks its base.

    A frame that is a difference needs its base model as `base`: header.base_id names it.
    """
    try:
        frame = Path(path).read_bytes()
    except OSError as error:
        raise FrameError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        header = read_header(frame)
        values = sum(tensor.size for tensor in header.tensors)
        if values > MOST_VALUES:
            raise FrameError(f"it claims {values} values; at most {MOST_VALUES} are read")
        return decode_frame(frame, header.shapes, base)
    except FrameError as error:
        raise FrameError(f"{path}: {error}") from error
