"""Frames on disk."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.coordinator.models import Models


def test_models_are_kept_by_their_id(tmp_path: Path) -> None:
    models = Models(tmp_path)
    models.save_model("a", b"first")
    models.save_model("b", b"second")
    models.drop_models(keep={"b"})
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["b.frame"]
    assert models.model_path("b").read_bytes() == b"second"


def test_updates_go_with_their_round(tmp_path: Path) -> None:
    models = Models(tmp_path)
    models.save_update(1, "d1", b"one")
    models.save_update(2, "d1", b"two")
    models.drop_updates(1)
    models.drop_updates(9)
    assert models.load_update(2, "d1") == b"two"
    assert [path.name for path in (tmp_path / "updates").iterdir()] == ["2"]
