"""Where data meets a model: the same shape, the same kind of numbers, and classes that go by name.

A device that lacks a class numbers the ones it has differently from the rest of the fleet. Names tell them apart.
"""

from __future__ import annotations

import difflib
import logging
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsyedge.edge.data.dataset import Samples
from sparsyedge.edge.data.form import Form, list_names
from sparsyedge.edge.errors import DataError

__all__ = ["fit_to_classes", "fit_to_model"]

log = logging.getLogger(__name__)

_REMEDY = "use the data set of the export, or export the model for this one"


def fit_to_model(samples: Samples, names: Sequence[str], model: Form, *, owner: str) -> Samples:
    """The samples with the labels that the model knows their classes by; the order stays, and `x` is shared.

    `names` are what the data calls its classes (empty if it does not), `model` is the form that the model takes. Raises
    DataError if the model cannot use the data; `owner` says whose it is.
    """
    shape = tuple(samples.x.shape[1:])
    if shape != model.shape:
        raise DataError(
            f"{owner} has samples of shape {shape}, the model takes {model.shape} (channels, height, width); {_REMEDY}"
        )
    _check_type(samples, model, owner)
    if names and model.names:
        return Samples(samples.x, fit_to_classes(samples.y, names, model.names, owner=owner))
    if names and len(names) != model.classes:
        raise DataError(
            f"{owner} has {len(names)} classes with names ({list_names(names)}), the model has {model.classes} "
            "without, so that nobody knows which is which; export it again with `sparsyedge export --dataset`, which "
            "takes the names along"
        )
    if (highest := int(samples.y.max())) >= model.classes:
        raise DataError(f"{owner} has label {highest}, the model knows 0..{model.classes - 1}; {_REMEDY}")
    if names or model.names:
        log.info("%s goes by number: 0 is %s", owner, (*names, *model.names)[0])
    return samples


def fit_to_classes(
    y: NDArray[np.int64], names: Sequence[str], known: Sequence[str], *, owner: str
) -> NDArray[np.int64]:
    """Labels that count `names`, renumbered so that they count `known`.

    A class that `known` lacks is refused where it has samples, and passed over where it has none.
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
    # No sample has the label of a stranger.
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
    """What two spellings of one name share: macOS and Linux write letters with accents differently."""
    return unicodedata.normalize("NFC", name)


def _check_type(samples: Samples, model: Form, owner: str) -> None:
    """Refuse numbers that are scaled otherwise than those that the model was exported for."""
    found, wanted = samples.x.dtype.name, model.sample_type
    if found == wanted:
        return
    if (found, wanted) == ("float32", "uint8"):
        # The model sees pixels in -1..1, and these may be such pixels already. From 0 upwards they are scaled to 0..1.
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
