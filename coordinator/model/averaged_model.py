"""The mean of the last few global models: what a run evaluates and delivers if its config says so.

With few labels per device, the global model swings from round to round with the cohort's labels. Their mean does not.
It is a function of the files in `models/`, so a restart changes nothing and no round has to remember it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sparsyedge.edge.model.allocation import prune_model
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.flat_frame import FlatUpdate, decode_flat
from sparsyedge.edge.wire.flat_layout import FlatLayout

__all__ = ["mean_of_frames"]


def mean_of_frames(
    frames: Iterable[bytes], layout: FlatLayout, method: Method, *, positions: Mapping[str, int] | None = None
) -> State:
    """Return the mean of models, each a frame that stands alone, at most as dense as the method's target.

    `positions` is as in `prune_model`. Takes the memory of one model beside one frame's entries. All sums are in
    float32, in the order of the frames.
    """
    mean = layout.empty()
    weights, others = layout.flat(mean, layout.weights), layout.flat(mean, layout.others)
    count = 0
    for frame in frames:
        model = decode_flat(frame, layout)[1]
        _add(weights, model)
        others += model.others
        count += 1
    if not count:
        raise ValueError("there is no model to average")
    for total in (weights, others):
        total /= np.float32(count)
    if not method.keeps_zeros:
        return mean
    return prune_model(method, mean, layout.weights, method.sparsity, positions=positions)


def _add(weights: np.ndarray[tuple[int], np.dtype[np.float32]], model: FlatUpdate) -> None:
    if model.positions is None:
        weights += model.values
    else:
        weights[model.positions] += model.values
