"""A model in memory that several processes share: the leader writes it between rounds, workers read it."""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np

from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.flat_layout import FlatLayout

__all__ = ["SharedModel"]

WORD_BYTES = 4


class SharedModel:
    """The tensors of a model, as views into shared memory without a name."""

    def __init__(self, layout: FlatLayout, handle: int | None = None) -> None:
        """Make new memory, or use the memory behind a descriptor that this process has inherited."""
        size = WORD_BYTES * max(1, layout.weight_entries + layout.other_entries)
        is_new = handle is None
        self.handle = os.memfd_create("sparsyedge-model") if handle is None else handle
        weakref.finalize(self, os.close, self.handle)
        if is_new:
            os.ftruncate(self.handle, size)
        self._memory = mmap.mmap(self.handle, size)
        entries = layout.weight_entries
        weights = np.frombuffer(self._memory, dtype=np.float32, count=entries)
        others = np.frombuffer(self._memory, dtype=np.float32, count=layout.other_entries, offset=WORD_BYTES * entries)
        self.state: State = layout.views(weights, others)
