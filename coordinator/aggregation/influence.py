"""How much each update of a round counts: its weight, and how far it may move the model.

We decide when the round closes, from what was measured of all its updates, so their order of arrival does not matter.
After a crash the coordinator measures the frames on disk again, and decides the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.claims import weigh
from sparsyedge.coordinator.aggregation.measures import Measures
from sparsyedge.coordinator.aggregation.norms import NEARLY, clip_scales, share_left, trust_of
from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation_config import AggregationConfig

__all__ = ["NOTABLE", "Influence", "Share"]

NOTABLE = 0.5
"""Honest updates get clipped too, but rarely to less than this share of their norm."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """What one update counts for."""

    samples: int
    """As claimed."""
    weight: int
    cut: bool = False
    """Whether a bound on claims made the weight less than the samples."""
    scales: Mapping[str, float] = field(default_factory=dict)
    left: float = 1.0
    """What the scales leave of the norm of its change."""
    trust: float = 1.0
    """The share of its weight that is left; less than 1 if it prunes far more than others."""
    left_out: bool = False
    """Whether the rule left it out."""

    @property
    def clipped(self) -> float:
        """How much of its change is left: 1 for all of it, 0 if the rule left the update out."""
        return 0.0 if self.left_out else self.left * self.trust


class Influence:
    """Judges the updates of one run, round by round."""

    def __init__(self, config: AggregationConfig, *, factor: float, told: Iterable[str] = ()) -> None:
        """`told`: devices already reported in the log."""
        self._config = config
        self._factor = factor
        self._told = {what: set(told) for what in ("claim", "clip", "left out")}

    def judge(
        self,
        claims: Mapping[str, int],
        measured: Mapping[str, Measures],
        base: RoundBase,
        *,
        pruned_exactly: Callable[[str], float],
    ) -> dict[str, Share]:
        """Return each device's share, given the samples that it claims and the measures of its update."""
        counts = weigh(claims, self._config)
        weights = np.array([counts[device] for device in claims], dtype=np.float64)
        changes = np.stack([measured[device].change for device in claims])
        scales = clip_scales(changes, weights, size=np.sqrt(base.squares), factor=self._factor)
        trust = self._trust(claims, measured, weights, base, pruned_exactly)
        names = (*base.layout.weights, *base.layout.others)
        shares = {}
        for row, (device, claim) in enumerate(claims.items()):
            clipped = np.flatnonzero(scales[row] != 1.0)
            shares[device] = Share(
                claim,
                counts[device],
                cut=self._config.weights == "samples" and counts[device] < claim,
                scales={names[tensor]: float(scales[row, tensor]) for tensor in clipped},
                left=share_left(changes[row], scales[row]) if clipped.size else 1.0,
                trust=float(trust[row]),
            )
        self._tell(shares)
        return shares

    def _trust(
        self,
        devices: Iterable[str],
        measured: Mapping[str, Measures],
        weights: NDArray[np.float64],
        base: RoundBase,
        pruned_exactly: Callable[[str], float],
    ) -> NDArray[np.float64]:
        """Return what is left of each device's weight. Norms are found to the last bit only where that matters."""
        size = math.hypot(*np.sqrt(base.squares[: len(base.layout.weights)]).tolist())
        pruned = np.array([measured[device].pruned for device in devices])
        trust = trust_of(pruned, weights, size=size, factor=self._factor * (1 - NEARLY))
        if (trust == 1.0).all():
            return trust
        exact = np.array([pruned_exactly(device) for device in devices])
        return trust_of(exact, weights, size=size, factor=self._factor)

    def leave_out(self, shares: Mapping[str, Share], devices: Collection[str]) -> dict[str, Share]:
        """Return the shares with these devices marked as left out by the rule."""
        for device in devices:
            if self._first("left out", device):
                log.warning(
                    "the update of device %s is left out by rule %s, by what its peers sent", device, self._config.rule
                )
        return {device: replace(share, left_out=device in devices) for device, share in shares.items()}

    def _tell(self, shares: Mapping[str, Share]) -> None:
        """Log once per device and run: a hostile device must not fill the log. Mild clipping is too common to log."""
        for device, share in shares.items():
            if share.cut and self._first("claim", device):
                log.warning(
                    "device %s claims %d samples and counts for %d: as declared, or twice the median of the round",
                    device,
                    share.samples,
                    share.weight,
                )
            if share.clipped < NOTABLE and self._first("clip", device):
                log.warning("the update of device %s is clipped to %.2g of its norm", device, share.clipped)

    def _first(self, what: str, device: str) -> bool:
        new = device not in self._told[what]
        self._told[what].add(device)
        return new
