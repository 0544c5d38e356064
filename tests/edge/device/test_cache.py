"""What a device keeps on disk between rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.fake_coordinator import (
    INITIAL,
    frame_of,
)

from sparsyedge.edge.device.cache import Cache

pytestmark = pytest.mark.timeout(300)


def test_newest_two_models_are_kept_and_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    frames = [frame_of(INITIAL, base_id="00", round_number=number) for number in range(3)]
    for number, frame in enumerate(frames):
        cache.keep_model(f"model{number}", frame)
    assert [cache.model(f"model{number}") for number in range(3)] == [None, frames[1], frames[2]]
    (tmp_path / "models" / "model2.frame").write_bytes(frames[2][:-1])
    assert cache.model("model2") is None
    assert "is damaged" in caplog.text
    assert not (tmp_path / "models" / "model2.frame").exists()


def test_newest_two_exports_are_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for name in ("first", "second", "third"):
        cache.keep_file(name, "training.bin", b"x")
    assert sorted(path.name for path in (tmp_path / "artifacts").iterdir()) == ["second", "third"]
