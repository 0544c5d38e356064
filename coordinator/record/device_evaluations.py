"""What devices found when they evaluated models on their own samples, and what that comes to over a fleet. No I/O.

These figures are the devices' own word: the coordinator checks that they are possible, not that they are true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GLOBAL_PREFIX", "PERSONAL_PREFIX", "DeviceEvaluation", "EvaluationRound", "figures_of", "shown"]

GLOBAL_PREFIX = "eval_global_"
"""Prefix of the figures of the model that all devices were given."""
PERSONAL_PREFIX = "eval_personal_"
"""Prefix of the figures of each device's own model, after its training."""
WORST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class DeviceEvaluation:
    """What one device found in one round; a regression has no accuracies."""

    round: int
    """The round it trained in, or in an evaluation round the last closed one."""
    device: str
    evaluation: int
    """The number of the evaluation round; 0 in a training round."""
    samples: int
    held_out: bool
    """Whether the samples are a held-out share of its data; else they are its test part."""
    loss: float | None
    """Of the model that it was given; None if that was not finite."""
    accuracy: float | None
    own_loss: float | None
    """Of its own model after training; None in an evaluation round."""
    own_accuracy: float | None
    seconds: float | None
    """What the evaluation cost; in a training round, the phase `evaluate` has that."""
    joules: float | None
    at: float
    """When the coordinator heard it, in Unix seconds."""

    @property
    def is_regression(self) -> bool:
        """Whether it has errors instead of accuracies."""
        return self.accuracy is None and self.own_accuracy is None


@dataclass(frozen=True, kw_only=True)
class EvaluationRound:
    """A round in which devices evaluated the run's model and nobody trained."""

    number: int
    round: int
    """The last closed round: its model was evaluated. 0 for the model that the run began from."""
    model_id: str
    asked: int
    """How many devices were asked."""
    begun_at: float
    ended_at: float | None
    """None while it is under way."""
    figures: Mapping[str, float]
    """As `figures_of` names them; empty while it is under way, or if no device had anything to evaluate on."""


def figures_of(found: Sequence[DeviceEvaluation]) -> dict[str, float]:
    """Means by samples, the worst tenth of the devices and the spread over devices, by name; empty without any.

    Devices that answer for another task than most are left out: a regression has no accuracy, and classes have one.
    """
    regression = 2 * sum(each.is_regression for each in found) > len(found)
    usable = [each for each in found if each.samples and each.is_regression == regression and each.loss is not None]
    if not usable:
        return {}
    figures = {"eval_devices": float(len(usable)), "eval_samples": float(sum(each.samples for each in usable))}
    figures |= _of_model(
        GLOBAL_PREFIX, [(each.samples, each.loss, each.accuracy) for each in usable], regression=regression
    )
    return figures | _of_model(
        PERSONAL_PREFIX, [(each.samples, each.own_loss, each.own_accuracy) for each in usable], regression=regression
    )


def _of_model(
    prefix: str, found: Sequence[tuple[int, float | None, float | None]], *, regression: bool
) -> dict[str, float]:
    losses = [(samples, loss) for samples, loss, _ in found if loss is not None]
    figures = _spread(f"{prefix}loss", losses, worst_is_high=True)
    if regression:
        # The root of a mean, not the mean of roots: it is the error over all samples.
        roots = _spread(f"{prefix}rmse", [(samples, math.sqrt(loss)) for samples, loss in losses], worst_is_high=True)
        return figures | roots | {f"{prefix}rmse": math.sqrt(figures[f"{prefix}loss"])} if losses else {}
    accuracies = [(samples, accuracy) for samples, _, accuracy in found if accuracy is not None]
    return figures | _spread(f"{prefix}accuracy", accuracies, worst_is_high=False)


def _spread(name: str, values: Sequence[tuple[int, float]], *, worst_is_high: bool) -> dict[str, float]:
    """The mean by samples, the mean over the worst tenth of the devices (at least one), the standard deviation."""
    if not values:
        return {}
    plain = sorted((value for _, value in values), reverse=worst_is_high)
    worst = plain[: math.ceil(WORST_SHARE * len(plain))]
    middle = math.fsum(plain) / len(plain)
    return {
        name: math.fsum(samples * value for samples, value in values) / sum(samples for samples, _ in values),
        f"{name}_worst": math.fsum(worst) / len(worst),
        f"{name}_std": math.sqrt(math.fsum((value - middle) ** 2 for value in plain) / len(plain)),
    }


def shown(figures: Mapping[str, float], prefix: str) -> tuple[str, str, str] | None:
    """The mean, the worst tenth and the spread as text: accuracies, or the errors of a regression; None without any."""
    for name, form in ((f"{prefix}accuracy", "{:.1%}"), (f"{prefix}rmse", "{:.4g}")):
        if name in figures:
            mean, worst, spread = (form.format(figures[each]) for each in (name, f"{name}_worst", f"{name}_std"))
            return mean, worst, spread
    return None
