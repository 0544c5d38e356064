"""`sparsyedge.edge.wire.read_frame`: frames in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixtures.repository import GOLDEN

from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.wire import frame_file, read_frame
from sparsyedge.edge.wire.frame import frame_of


def test_frame_that_stands_alone_is_read_with_nothing_else() -> None:
    frame = read_frame(GOLDEN / "base.frame")
    assert set(frame.state) == {tensor.name for tensor in frame.header.tensors}
    assert all(tensor.dtype == np.float32 for tensor in frame.state.values())


def test_difference_is_read_beside_its_base_and_refused_without(tmp_path: Path) -> None:
    base = {"w": np.arange(4, dtype=np.float32)}
    state = {"w": np.arange(4, dtype=np.float32) + np.float32(0.5)}
    path = tmp_path / "update.frame"
    path.write_bytes(frame_of(state, run="r", round_number=2, base_id="m", base=base, prunable=["w"]))
    np.testing.assert_array_equal(read_frame(path, base).state["w"], state["w"])
    with pytest.raises(FrameError, match=r"update\.frame: frame is a difference to model"):
        read_frame(path)


def test_frame_that_claims_more_than_fits_is_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "huge.frame"
    path.write_bytes(
        frame_of({"w": np.zeros(8, dtype=np.float32)}, run="r", round_number=1, base_id="m", prunable=["w"])
    )
    monkeypatch.setattr(frame_file, "MOST_VALUES", 7)
    with pytest.raises(FrameError, match="claims 8 values; at most 7"):
        read_frame(path)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match=r"cannot read .*gone\.frame"):
        read_frame(tmp_path / "gone.frame")
