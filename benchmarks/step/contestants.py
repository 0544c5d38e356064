"""The table of contestants; each has variants, and the fastest one counts."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from sparsyedge.benchmarks.step.workload import Workload
from sparsyedge.edge.errors import ArtifactError

__all__ = ["CONTESTANTS", "OURS", "Contestant", "Variant", "open_contestants"]

OURS = "sparsyedge"


class Contestant(Protocol):
    """Something that trains the workload's model on the workload's batch."""

    def step(self) -> float:
        """Take one step of SGD and return the loss before it."""


class ContestantFactory(Protocol):
    """The class of a contestant."""

    def __call__(self, workload: Workload, *, variant: str) -> Contestant: ...


@dataclass(frozen=True)
class Variant:
    """One way to run a contestant; imports its module on use, to keep other libraries out of its memory figure."""

    contestant: str
    module: str
    factory: str
    label: str = ""

    def load(self) -> ContestantFactory:
        """Import the class and the libraries it needs."""
        return cast("ContestantFactory", getattr(importlib.import_module(self.module), self.factory))


_OWN = "sparsyedge.benchmarks.step.ours"
_ORT = "sparsyedge.benchmarks.step.peer_ort"
_TORCH = "sparsyedge.benchmarks.step.peers_torch"
_SPARSEPROP = "sparsyedge.benchmarks.step.peer_sparseprop"
_LAYOUTS = ("nchw", "channels_last")

CONTESTANTS: dict[str, tuple[Variant, ...]] = {
    OURS: (Variant(OURS, _OWN, "SparseStep"),),
    "torch_dense": tuple(Variant("torch_dense", _TORCH, "DenseStep", layout) for layout in _LAYOUTS),
    "torch_sparsyfed": tuple(Variant("torch_sparsyfed", _TORCH, "SparsyFedStep", layout) for layout in _LAYOUTS),
    "ort_stock": (Variant("ort_stock", _ORT, "StockStep"),),
    "sparseprop": (Variant("sparseprop", _SPARSEPROP, "SparsePropStep"),),
}


def open_contestants(names: Iterable[str], workload: Workload) -> tuple[dict[Variant, Contestant], dict[str, str]]:
    """Every variant of the named contestants, ready to step; and by name, why a contestant cannot run here."""
    opened: dict[Variant, Contestant] = {}
    unavailable: dict[str, str] = {}
    for name in names:
        try:
            opened.update({variant: _open(variant, workload) for variant in CONTESTANTS[name]})
        except (ImportError, ArtifactError) as error:
            unavailable[name] = str(error)
    return opened, unavailable


def _open(variant: Variant, workload: Workload) -> Contestant:
    return variant.load()(workload, variant=variant.label)
