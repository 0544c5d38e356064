"""The paper's figures from results: what is drawn, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sparsyedge.benchmarks.paper import command
from sparsyedge.benchmarks.paper.drawings import exchanged
from sparsyedge.benchmarks.paper.mask_overlap import overlap_document, overlap_of
from sparsyedge.benchmarks.paper.settings import Setting
from sparsyedge.edge.errors import ConfigError, DataError


def masks(count: int) -> dict[int, bytes]:
    rng = np.random.default_rng(3)
    return {number: np.packbits(rng.random(800) < 0.3).tobytes() for number in range(5, 5 * count + 1, 5)}


def result(setting: Setting, *arguments: object, **options: object) -> dict[str, Any]:
    rounds = [
        {
            "round": number,
            "updates": 2,
            "nonzeros_down": 200 * number,
            "nonzeros_up": 100,
            "test_accuracy": None if number == 2 else number / 10,
        }
        for number in (1, 2, 3)
    ]
    found: dict[str, Any] = {"setting": msgspec.to_builtins(setting), "figures": {"accuracy": 0.3}, "rounds": rounds}
    layers = {"conv1.weight": 0.2, "fc.weight": 0.8}
    return found | {"layer_sparsity": layers, "mask_overlap": overlap_document(masks(4))}


def test_the_overlap_of_masks_comes_back_from_a_document() -> None:
    kept = masks(4)
    document = json.loads(json.dumps({"mask_overlap": overlap_document(kept)}))
    found = overlap_of(document)
    assert found is not None
    rounds, overlap = found
    assert rounds == [5, 10, 15, 20]
    bits = [np.unpackbits(np.frombuffer(mask, dtype=np.uint8)).astype(bool) for mask in kept.values()]
    expected = [[(a & b).sum() / (a | b).sum() for a in bits] for b in bits]
    np.testing.assert_allclose(overlap, expected, atol=5e-5)


def test_a_run_with_one_mask_and_an_older_document_have_no_map() -> None:
    assert overlap_document(masks(1)) is None
    assert overlap_of({"rounds": []}) is None


def test_values_are_added_up_over_rounds_for_one_device() -> None:
    rounds = [
        {"round": 1, "updates": 2, "nonzeros_down": 200, "nonzeros_up": 100, "test_accuracy": 0.1},
        {"round": 2, "updates": 2, "nonzeros_down": 400, "nonzeros_up": 100, "test_accuracy": None},
        {"round": 3, "updates": 4, "nonzeros_down": 900, "nonzeros_up": 100, "test_accuracy": 0.25},
    ]
    assert exchanged({"rounds": rounds}) == [(150.0, 10.0), (650.0, 25.0)]


@pytest.mark.parametrize("table", ["communication", "iou", "layers", "sparsity"])
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_each_table_draws_its_own_figure(
    table: str, suffix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "run_setting", result)
    file = tmp_path / f"figure.{suffix}"
    assert command.main([table, "--results", str(tmp_path), "--plot", str(file), "--json"]) == 0
    assert file.read_bytes().startswith(b"<?xml" if suffix == "svg" else b"\x89PNG")


def test_a_file_that_cannot_be_drawn_to_is_refused_before_any_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "run_setting", lambda *arguments, **options: pytest.fail("a run was started"))
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg"):
        command.main(["iou", "--results", str(tmp_path), "--plot", str(tmp_path / "iou.pdf")])


def test_results_without_masks_say_why_there_is_no_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def old(setting: Setting, *arguments: object, **options: object) -> dict[str, Any]:
        return {key: value for key, value in result(setting).items() if key != "mask_overlap"}

    monkeypatch.setattr(command, "run_setting", old)
    with pytest.raises(DataError, match=r"none of these results has the overlap of its masks: .* leave --plot out"):
        command.main(["iou", "--results", str(tmp_path), "--plot", str(tmp_path / "iou.png")])
