"""What evaluations on devices came to, as the page shows it: accuracies, or the RMSE of a regression."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparsyedge.coordinator.record.device_evaluations import GLOBAL_PREFIX, PERSONAL_PREFIX, DeviceEvaluation

__all__ = ["NO_SCORES", "LastScores", "add_scores", "on_devices", "score"]


class LastScores(NamedTuple):
    """What a device found last of the model that it was given, and of its own."""

    given: float | None = None
    own: float | None = None
    round: int = 0
    """The round in which it evaluated the model that it was given."""
    is_regression: bool = False

    def then(self, found: DeviceEvaluation) -> LastScores:
        """Return the scores after an evaluation; one that tried no model of its own leaves that score as it was."""
        given, own = score(found.loss, found.accuracy), score(found.own_loss, found.own_accuracy)
        if given is None and own is None:
            return self
        kept = self.own if self.is_regression == found.is_regression else None
        return LastScores(given, kept if own is None else own, found.round, found.is_regression)


NO_SCORES = LastScores()


def score(loss: float | None, accuracy: float | None) -> float | None:
    """Return the accuracy, or in a regression the RMSE; None without either."""
    if accuracy is not None or loss is None:
        return accuracy
    return math.sqrt(loss)


def on_devices(figures: Mapping[str, float] | None) -> dict[str, Any] | None:
    """Return the means and worst tenths of a round's evaluations on devices; None if there were none."""
    if not figures:
        return None
    kind = "accuracy" if f"{GLOBAL_PREFIX}accuracy" in figures else "rmse"
    shown: dict[str, Any] = {"kind": kind, "devices": int(figures.get("eval_devices", 0))}
    for name, prefix in (("given", GLOBAL_PREFIX), ("own", PERSONAL_PREFIX)):
        shown[name] = figures.get(f"{prefix}{kind}")
        shown[f"{name}_worst"] = figures.get(f"{prefix}{kind}_worst")
    return shown


def add_scores(known: dict[str, LastScores], found: Iterable[DeviceEvaluation]) -> None:
    """Bring the last scores of devices up to date with evaluations, the latest last."""
    for each in found:
        known[each.device] = known.get(each.device, NO_SCORES).then(each)
