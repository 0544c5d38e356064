"""What the paper prints: every accuracy of its tables, from published.json beside this file."""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import Any, Literal, NamedTuple

from sparsyedge.benchmarks.common.paired import Interval, t_interval
from sparsyedge.edge.model.methods import MethodConfig

__all__ = ["SEEDS_OF_A_CELL", "Published", "find_published", "read_published"]

SEEDS_OF_A_CELL = 3


class Published(NamedTuple):
    """One cell of the paper, in percent."""

    mean: float
    std: float

    @property
    def interval(self) -> Interval:
        """The 95 % interval of its mean, as if the deviation were that of the sample."""
        return t_interval(self.mean, self.std, SEEDS_OF_A_CELL)

    def overlaps(self, ours: Interval) -> bool | None:
        """Whether our interval, in percent, and the paper's have a value in common; None if ours has no bounds."""
        if math.isinf(ours.half_width):
            return None
        theirs = self.interval
        return ours.low <= theirs.high and theirs.low <= ours.high

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f}"


@functools.cache
def read_published() -> dict[str, Any]:
    """The whole file: source, tables, contradictions within the paper, hyperparameters and the figures' settings."""
    file = resources.files("sparsyedge.benchmarks.paper") / "published.json"
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def find_published(
    tables: tuple[str, ...],
    *,
    dataset: str,
    alpha: float,
    method: MethodConfig,
    devices: int,
    end: Literal["lower", "higher"] = "lower",
) -> Published | None:
    """The cell for a run, from the first of these tables that has it; None if the paper has no such run.

    A variant of a method that makes a choice of its own stands beside the method's cell. Groups with targets of their
    own have two cells, one at either `end` of the targets.
    """
    for table in tables:
        for cell in read_published()["tables"][table]:
            if _fits(cell, dataset=dataset, alpha=alpha, method=method, devices=devices, end=end):
                return Published(cell["mean"], cell["std"])
    return None


def _fits(cell: dict[str, Any], *, dataset: str, alpha: float, method: MethodConfig, devices: int, end: str) -> bool:
    if (cell["dataset"], cell["alpha"], cell["method"]) != (dataset, alpha, method.name):
        return False
    if cell.get("devices", 100) != devices:
        return False
    if "targets" in cell:
        return cell["evaluated_at"] == end and tuple(cell["targets"]) == method.sparsities
    return bool(cell["sparsity"] == method.sparsity) and not method.sparsities
