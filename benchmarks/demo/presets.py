"""Settings that train a built-in data set well in a short run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALPHA", "PRESETS", "Preset"]

ALPHA = 1.0
"""How alike the devices' data is."""


@dataclass(frozen=True)
class Preset:
    """Rounds, local epochs and learning rates."""

    rounds: int
    epochs: int
    learning_rate: float
    last_learning_rate: float


PRESETS = {
    "digits": Preset(rounds=8, epochs=2, learning_rate=0.2, last_learning_rate=0.02),
    "cifar10": Preset(rounds=20, epochs=1, learning_rate=0.5, last_learning_rate=0.01),
    "cifar100": Preset(rounds=20, epochs=1, learning_rate=0.5, last_learning_rate=0.01),
}
