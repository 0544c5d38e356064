"""The overlap of a run's masks in all pairs of rounds, as a result's document keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.record.metrics import iou_matrix

__all__ = ["overlap_document", "overlap_of"]

PLACES = 4


def overlap_document(masks: Mapping[int, bytes]) -> dict[str, Any] | None:
    """The rounds, and the overlap of each with those before it; None if there are no two masks.

    A round's figures are one text with a space between two: a number per line would make the file long.
    """
    if len(masks) < 2:
        return None
    overlap = iou_matrix(list(masks.values()))
    lines = [" ".join(f"{value:.{PLACES}f}" for value in overlap[place, :place]) for place in range(1, len(masks))]
    return {"rounds": list(masks), "iou": lines}


def overlap_of(document: Mapping[str, Any]) -> tuple[list[int], NDArray[np.float64]] | None:
    """The rounds and the whole map of a result; None for one that was made without."""
    kept = document.get("mask_overlap")
    if not kept:
        return None
    overlap = np.eye(len(kept["rounds"]))
    for place, line in enumerate(kept["iou"], start=1):
        overlap[place, :place] = overlap[:place, place] = [float(value) for value in line.split()]
    return list(kept["rounds"]), overlap
