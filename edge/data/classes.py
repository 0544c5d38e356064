"""Fits data to a model: the same task and shape, the same type of numbers, and classes matched by name.

A device that lacks a class numbers its classes differently from the rest of the fleet, so we match them by name.
"""

from __future__ import annotations

import difflib
import logging
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Labels, Samples, axes_of
from sparsyedge.edge.data.form import Form, list_names
from sparsyedge.edge.errors import DataError

__all__ = ["fit_to_classes", "fit_to_model"]

log = logging.getLogger(__name__)

_REMEDY = "use the data set of the export, or export the model for this one"


def fit_to_model(samples: Samples, names: Sequence[str], model: Form, *, owner: str) -> Samples:
    """The samples, relabelled with the model's class numbers; keeps their order and shares `x`.

    `names` are the data's class names (empty if it has none), `model` is the form of the model's input. Raises
    DataError if the model cannot use the data; `owner` says whose data it is.
    """
    shape = tuple(samples.x.shape[1:])
    if shape != model.shape:
        raise DataError(
            f"{owner} has samples of shape {shape}, the model takes {model.shape} {axes_of(model.shape)}; {_REMEDY}"
        )
    _check_type(samples, model, owner)
    _check_task(samples, model, owner)
    if model.task == "regression":
        _check_outputs(samples, names, model, owner)
        return samples
    if names and model.names:
        return Samples(samples.x, fit_to_classes(samples.y, names, model.names, owner=owner))
    if names and len(names) != model.classes:
        raise DataError(
            f"{owner} has {len(names)} classes with names ({list_names(names)}), the model has {model.classes} "
            "without names, so they cannot be matched; export it again with `sparsyedge export --dataset`, which "
            "includes the names"
        )
    if (highest := int(samples.y.max())) >= model.classes:
        raise DataError(f"{owner} has label {highest}, the model knows 0..{model.classes - 1}; {_REMEDY}")
    if names or model.names:
        log.info("%s: classes are matched by number; 0 is %s", owner, (*names, *model.names)[0])
    return samples


def _check_task(samples: Samples, model: Form, owner: str) -> None:
    if samples.task == model.task:
        return
    if model.task == "classes":
        raise DataError(
            f"{owner} has labels of {samples.y.dtype}, which is a regression, the model tells {model.classes} classes "
            f"apart; save class numbers with astype('int64'), or {_REMEDY}"
        )
    raise DataError(
        f"{owner} has labels of {samples.y.dtype}, which are classes, the model is a regression with {model.outputs} "
        f"outputs; save targets with astype('float32'), or {_REMEDY}"
    )


def _check_outputs(samples: Samples, names: Sequence[str], model: Form, owner: str) -> None:
    """Refuse targets that are others than the model's; unnamed ones go by their order."""
    if samples.y.shape[1] != model.outputs:
        raise DataError(
            f"{owner} has {samples.y.shape[1]} targets per sample, the model has {model.outputs} outputs; {_REMEDY}"
        )
    if names and model.names and list(map(_key, names)) != list(map(_key, model.names)):
        raise DataError(
            f"{owner} has the targets {list_names(names)}, the model gives {list_names(model.names)}; store them in "
            "that order and under these names"
        )


def fit_to_classes(y: Labels, names: Sequence[str], known: Sequence[str], *, owner: str) -> NDArray[np.int64]:
    """Renumber labels that index `names` into labels that index `known`.

    Refuses a class that `known` lacks if it has samples, and ignores it if it has none.
    """
    places = {_key(name): place for place, name in enumerate(known)}
    present = set(np.unique(y).tolist())
    strangers = [name for name in names if _key(name) not in places]
    refused = [name for label, name in enumerate(names) if _key(name) not in places and label in present]
    if refused:
        near = difflib.get_close_matches(refused[0], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "rename or remove it, or export the model with it"
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise DataError(
            f"{owner} has samples of class {list_names(refused[:1])!r}{more}, which the model does not know; it knows "
            f"{list_names(known, room=300)}: {hint}"
        )
    if strangers:
        log.info(
            "%s names classes that have no samples and that the model does not know: %s", owner, list_names(strangers)
        )
    # No sample has the label of an unknown class.
    table = np.array([places.get(_key(name), -1) for name in names], dtype=np.int64)
    renumbered: NDArray[np.int64] = table[y]
    lacking = sorted(set(range(len(known))) - set(np.unique(renumbered).tolist()))
    if lacking:
        names_lacking = list_names([known[place] for place in lacking])
        log.info(
            "%s has no samples of %d of the model's %d classes: %s", owner, len(lacking), len(known), names_lacking
        )
    return renumbered


def _key(name: str) -> str:
    """The form that two spellings of a name share: macOS and Linux encode accented letters differently."""
    return unicodedata.normalize("NFC", name)


def _check_type(samples: Samples, model: Form, owner: str) -> None:
    """Refuse numbers scaled differently from those that the model was exported for."""
    found, wanted = samples.x.dtype.name, model.sample_type
    if found == wanted:
        return
    if (found, wanted) == ("float32", "uint8"):
        # The model takes pixels in -1..1, which these may already be. Without negative values they are in 0..1 instead.
        low, high = float(samples.x.min()), float(samples.x.max())
        if low >= -1 and high <= 1 and (low < 0 or high == 0):
            return
        remedy = "scale it with x * 2 - 1" if low >= 0 and high <= 1 else "scale it"
        raise DataError(
            f"{owner} is float32 from {low:g} to {high:g}, the model takes uint8 pixels or float32 from -1 to 1; "
            f"save it as uint8 (samples, height, width, channels), or {remedy}"
        )
    raise DataError(
        f"{owner} is {found}, the model was exported for {wanted} data, which is scaled in another way; save it as "
        f"{wanted}, or export the model for this data"
    )
