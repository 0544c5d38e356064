"""Settings that train a small model well in a short run, for the demo and for benchmarks that compare runs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALPHA", "PRESETS", "Preset"]

ALPHA = 1.0
"""How unevenly devices get the classes; smaller is more uneven."""


@dataclass(frozen=True)
class Preset:
    """Rounds, local epochs and learning rates that train the data set's model well in a short run."""

    rounds: int
    epochs: int
    learning_rate: float
    last_learning_rate: float


PRESETS = {
    "digits": Preset(rounds=8, epochs=2, learning_rate=0.2, last_learning_rate=0.02),
    "cifar10": Preset(rounds=20, epochs=1, learning_rate=0.5, last_learning_rate=0.01),
    "cifar100": Preset(rounds=20, epochs=1, learning_rate=0.5, last_learning_rate=0.01),
}
