"""`--scale full` is the paper's experiment: the rows of every table, beside what the paper says of it."""

from __future__ import annotations

from typing import Any

import pytest

from sparsyedge.benchmarks.paper.experiments import EXPERIMENTS, Row
from sparsyedge.benchmarks.paper.published import read_published
from sparsyedge.benchmarks.paper.settings import SCALES, SEEDS
from sparsyedge.edge.model.methods import method_of

SPARSITIES = (0.9, 0.95, 0.99, 0.995, 0.999)
ALPHAS = (1000.0, 1.0, 0.1)
TARGETS = ((0.9, 0.85, 0.8), (0.99, 0.95, 0.9))

Place = tuple[str, float, str, float | None]
"""Data set, alpha, method, sparsity."""


def places(table: str) -> list[Place]:
    """What the rows of a table run."""
    return [_place(row) for row in EXPERIMENTS[table].rows(True)]


def _place(row: Row) -> Place:
    return row.dataset, row.alpha, row.method.name, row.method.sparsity


def at(dataset: str, alpha: float, *methods: str, sparsities: tuple[float, ...] = (0.95,)) -> set[Place]:
    pruned = {(dataset, alpha, name, s) for name in methods if name != "dense" for s in sparsities}
    return pruned | ({(dataset, alpha, "dense", None)} if "dense" in methods else set())


def everywhere(*methods: str, sparsities: tuple[float, ...] = SPARSITIES) -> set[Place]:
    return set[Place]().union(*(at("cifar10", alpha, *methods, sparsities=sparsities) for alpha in ALPHAS))


COMPARED = ("sparsyfed", "topk", "zerofl", "flash")
EXPECTED: dict[str, set[Place]] = {
    "accuracy": set[Place]().union(
        *(
            at(dataset, alpha, "dense", *COMPARED, sparsities=SPARSITIES)
            for dataset in ("cifar10", "cifar100", "speech_commands")
            for alpha in ALPHAS
        )
    ),
    "communication": at("cifar100", 0.1, "dense", *COMPARED),
    "iou": at("cifar100", 0.1, *COMPARED),
    "activations": everywhere("sparsyfed", "sparsyfed-no-act"),
    "reparametrisation": at(
        "cifar10",
        1.0,
        *("dense", "sparsyfed", "spectral", "auto-beta", "fixed-mask", "topk"),
        sparsities=SPARSITIES,
    ),
    "beta": at("cifar10", 1.0, "dense", "topk", "auto-beta", "sparsyfed"),
    "naive": everywhere("sparsyfed", "naive-powerprop") | everywhere("naive-powerprop", sparsities=(0.0,)),
    "devices-1000": at("cifar10", 0.1, "dense", "sparsyfed", "flash"),
    "sparsity": at("cifar100", 0.1, "sparsyfed", "topk", "zerofl", sparsities=(0.9,))
    | at("cifar10", 0.1, "sparsyfed", "topk", "zerofl", sparsities=(0.95, 0.99, 0.995, 0.999)),
    "layers": at("cifar10", 0.1, "sparsyfed", "zerofl", sparsities=(0.6,)),
    "movement": set[Place]().union(
        *(at(dataset, 0.1, "dense", "sparsyfed", "topk") for dataset in ("cifar10", "cifar100", "speech_commands"))
    ),
    "vit": at("cub200", 1000.0, "dense", "sparsyfed", "topk", sparsities=(0.5,)),
}
OURS = {"order", "levers", "heterogeneous"}
"""Tables that are not the paper's, and one whose rows have several targets each."""


def test_every_table_of_the_paper_is_named_here() -> None:
    assert set(EXPECTED) <= set(EXPERIMENTS)
    assert set(EXPERIMENTS) >= OURS


@pytest.mark.parametrize("table", EXPECTED)
def test_a_table_runs_what_the_paper_ran(table: str) -> None:
    assert set(places(table)) == EXPECTED[table]


def test_groups_of_devices_have_the_papers_targets_methods_and_alphas() -> None:
    rows = EXPERIMENTS["heterogeneous"].rows(True)
    found = {(row.alpha, row.method.name, row.method.sparsities) for row in rows}
    assert found >= {(alpha, name, t) for alpha in (1000.0, 0.1) for name in ("sparsyfed", "flash") for t in TARGETS}
    assert {row.method.shares for row in rows} == {(40, 30, 30)}
    own = {(row.alpha, row.method.name, row.method.sparsities) for row in rows if row.method.download == "own"}
    assert own == {(alpha, name, t) for alpha in (1000.0, 0.1) for name in ("sparsyfed", "flash") for t in TARGETS}


def test_every_cell_that_the_paper_prints_is_found_by_a_row() -> None:
    found = set()
    for experiment in EXPERIMENTS.values():
        found |= {experiment.published_cell(row) for row in experiment.rows(True)}
    tables: dict[str, list[dict[str, Any]]] = read_published()["tables"]
    cells = [cell for table in tables.values() for cell in table if cell.get("evaluated_at") != "higher"]
    # Where the paper prints a cell twice with different deviations, a row has one of them.
    means = {cell.mean for cell in found if cell is not None}
    assert [cell for cell in cells if cell["mean"] not in means] == []
    highest = {row.paper["accuracy_sparsest"] for row in EXPERIMENTS["heterogeneous"].rows(True) if row.paper}
    expected = {f"{each['mean']:.2f}" for each in tables["heterogeneous"] if each["evaluated_at"] == "higher"}
    assert highest == expected


def test_beta_and_movement_have_the_papers_rounds_and_exponents() -> None:
    beta = {method_of(row.method).beta for row in EXPERIMENTS["beta"].rows(True) if row.method.name == "sparsyfed"}
    assert beta == {1.05, 1.1, 1.15, 1.25, 1.5, 1.75, 2.0}
    assert {row.rounds for row in EXPERIMENTS["beta"].rows(True)} == {500}
    movement = EXPERIMENTS["movement"].rows(True)
    assert {row.rounds for row in movement} == {200}
    exponents = {row.dataset: method_of(row.method).beta for row in movement if row.method.name == "sparsyfed"}
    assert exponents == {"cifar10": 1.25, "cifar100": 1.25, "speech_commands": 1.15}


def test_the_spectral_row_has_both_norms_at_every_sparsity() -> None:
    rows = [row for row in EXPERIMENTS["reparametrisation"].rows(True) if row.method.name == "spectral"]
    found = {(row.method.sparsity, row.method.sigma) for row in rows}
    assert found == {(sparsity, sigma) for sparsity in SPARSITIES for sigma in (None, "exact")}


def test_the_ablation_without_a_reparametrisation_prunes_activations_as_the_papers_does() -> None:
    rows = [row for row in EXPERIMENTS["reparametrisation"].rows(True) if "activations pruned" in row.label]
    assert [row.method.sparsity for row in rows] == list(SPARSITIES)
    for row in rows:
        method = method_of(row.method)
        assert (method.prune_activations, method.beta, method.keeps_zeros) == (True, 1.0, False)


@pytest.mark.parametrize("table", [name for name in EXPERIMENTS if name not in {"vit"}])
def test_a_full_run_has_the_papers_training(table: str) -> None:
    for row in EXPERIMENTS[table].rows(True):
        setting = next(row.settings(SCALES["full"], SEEDS, full=True))
        rounds = row.rounds or {"speech_commands": 500}.get(row.dataset, 700)
        assert (setting.width, setting.cohort, setting.rounds) == (64, 10, rounds)
        assert (setting.epochs, setting.batch_size) == (1, 16)
        assert (setting.learning_rate, setting.last_learning_rate) == (0.5, 0.01)
        assert setting.model == (None if row.dataset == "speech_commands" else "resnet18")
