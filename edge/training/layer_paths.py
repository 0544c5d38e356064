"""Which layers of the general layout compute with their non-zeros alone, and which as dense products.

Measured on ViT-tiny's layers with AVX-512, one thread and random masks: forward, input and weight gradient over the
non-zeros take as long as onnxruntime's dense products where half of the weights are left
(docs/explanation/sparse-training.md). The choice holds from one `load` of a session to the next.
"""

from __future__ import annotations

__all__ = ["BREAK_EVEN", "computes_sparse"]

BREAK_EVEN = 0.5
"""The largest density at which a layer computes with its non-zeros."""


def computes_sparse(kept: int, size: int) -> bool:
    """Whether a layer with `kept` of `size` weights computes with these alone."""
    return kept <= BREAK_EVEN * size
