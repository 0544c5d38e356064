"""The paper's own numbers: complete, found for the right runs, and printed beside ours."""

from __future__ import annotations

import pytest

from sparsyedge.benchmarks.common.paired import mean_interval
from sparsyedge.benchmarks.paper.experiments import EXPERIMENTS
from sparsyedge.benchmarks.paper.published import Published, find_published, read_published
from sparsyedge.edge.model.methods import MethodConfig


def test_every_cell_of_the_papers_tables_is_there() -> None:
    tables = read_published()["tables"]
    assert sum(len(cells) for cells in tables.values()) == 397
    assert all(0 < cell["mean"] < 100 and cell["std"] >= 0 for cells in tables.values() for cell in cells)


@pytest.mark.parametrize(
    ("table", "label", "expected"),
    [
        ("accuracy", "cifar10 a=1 sparsyfed 0.999", Published(51.39, 3.19)),
        ("accuracy", "cifar10 a=1 flash 0.999", Published(36.07, 7.49)),
        ("accuracy", "cifar10 a=1 dense", Published(83.70, 1.70)),
        ("activations", "a=1000 sparsyfed-no-act 0.9", Published(83.92, 1.58)),
        ("naive", "a=1000 naive-powerprop 0", Published(84.69, 1.57)),
        ("heterogeneous", "a=0.1 sparsyfed 0.9/0.85/0.8", Published(74.97, 2.39)),
        ("devices-1000", "dense", Published(47.11, 2.77)),
    ],
)
def test_a_row_of_the_full_scale_finds_the_papers_cell(table: str, label: str, expected: Published) -> None:
    experiment = EXPERIMENTS[table]
    (row,) = [row for row in experiment.rows(True) if row.label == label]
    assert experiment.published_cell(row) == expected


@pytest.mark.parametrize("table", ["accuracy", "activations", "naive", "devices-1000"])
def test_every_row_of_a_table_with_numbers_has_one(table: str) -> None:
    experiment = EXPERIMENTS[table]
    missing = [row.label for row in experiment.rows(True) if experiment.published_cell(row) is None]
    assert missing == []


def test_no_cell_of_another_setting_is_taken() -> None:
    method = MethodConfig(name="sparsyfed", sparsity=0.97)
    assert find_published(("main",), dataset="cifar10", alpha=1.0, method=method, devices=100) is None
    method = MethodConfig(name="sparsyfed", sparsity=0.95)
    assert find_published(("main",), dataset="cifar10", alpha=1.0, method=method, devices=1000) is None


def test_intervals_overlap_or_do_not_and_one_seed_decides_nothing() -> None:
    cell = Published(50.0, 2.0)  # 45.03 to 54.97
    assert cell.overlaps(mean_interval([54.0, 55.0, 56.0])) is True
    assert cell.overlaps(mean_interval([59.0, 59.5, 60.0])) is False
    assert cell.overlaps(mean_interval([50.0])) is None
