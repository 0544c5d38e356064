"""What a manifest says about the graphs that only their writer knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsyedge.edge.model.artifacts import BatchNorm

__all__ = ["GraphFacts"]


@dataclass(frozen=True)
class GraphFacts:
    """Found while the graphs of one export were written."""

    batch_norms: tuple[BatchNorm, ...]
    positions: Mapping[str, int]
    """How many positions of a sample each prunable weight applies to, by its name."""
    prunable: frozenset[str]
    statistics: frozenset[str]
    """What a step changes without training it: BatchNorm's running statistics, and other buffers of the module."""
