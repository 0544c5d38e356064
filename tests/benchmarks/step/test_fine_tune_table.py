"""The table of docs/how-to/fine-tune.md."""

from __future__ import annotations

from sparsyedge.benchmarks.step.fine_tune_table import HEAD, row


def test_a_row_has_the_columns_of_the_table() -> None:
    measured = {
        "median_ms": {"sparsyedge": 20.0, "torch_dense": 50.0},
        "min_ms": {"sparsyedge": 16.0, "torch_dense": 24.0},
        "peak_mb": {"sparsyedge": 38.6, "torch_dense": 133.4},
        "update_bytes": {"lossless": 3475, "bf16": 1670, "float32": 9},
    }
    found = row("ViT-tiny", "last:1", measured)
    assert found == "| ViT-tiny | last:1 | 2.50x, 1.50x | 20, 16 | 39, 133 | 3,475, 1,670 |"
    assert found.count("|") == HEAD.splitlines()[0].count("|")
