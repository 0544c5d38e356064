"""`sparsyedge.edge.inference.evaluate`: a delivered model and labelled data in, the share that is right out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sparsyedge.edge.errors import DataError
from sparsyedge.edge.inference import evaluate

NAMES = ("trouser", "shoe", "hat", "Å")


def write_data(path: Path, *, drawn: list[int], labels: list[int], names: tuple[str, ...] = NAMES) -> str:
    """Write images (height, width, channels) whose row `drawn` is white, with these labels."""
    x = np.zeros((len(drawn), 4, 5, 3), dtype=np.uint8)
    for sample, row in enumerate(drawn):
        x[sample, row] = 255
    y = np.array(labels)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, names=np.array(names))
    return str(path)


@pytest.mark.parametrize("model", ["model.onnx", "model_float.onnx"])
def test_score_counts_what_the_model_gets_right_in_all_and_by_class(run_dir: Path, tmp_path: Path, model: str) -> None:
    data = write_data(tmp_path / "data.npz", drawn=[0, 0, 1, 2], labels=[0, 1, 1, 2])
    score = evaluate(run_dir / model, data)
    assert (score.samples, score.accuracy) == (4, 0.75)
    assert {name: share for name, share in score.by_class.items() if not math.isnan(share)} == {
        "trouser": 1.0,
        "shoe": 0.5,
        "hat": 1.0,
    }


def test_classes_that_the_data_numbers_otherwise_are_met_by_name(run_dir: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.npz", drawn=[0, 3], labels=[3, 0], names=NAMES[::-1])
    assert evaluate(run_dir / "model.onnx", data).accuracy == 1.0


def test_data_of_another_shape_is_refused_with_both_shapes(run_dir: Path, tmp_path: Path) -> None:
    x = np.zeros((4, 7, 7, 3), dtype=np.uint8)
    y = np.arange(4)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y, names=np.array(NAMES))
    with pytest.raises(
        DataError, match=r"shape \(4, 3, 7, 7\); the model was trained on uint8 samples of shape \(3, 4, 5\)"
    ):
        evaluate(run_dir / "model.onnx", str(tmp_path / "data.npz"))
