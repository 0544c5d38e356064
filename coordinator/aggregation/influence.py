"""How much each update of a round counts: its weight, and how far it may move the model.

We decide when the round closes, from all its updates, so their order of arrival does not matter. After a crash the
coordinator decides the same again, because it works from the frames on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sparsyedge.coordinator.aggregation.claims import weigh
from sparsyedge.coordinator.aggregation.norms import (
    Pull,
    Scales,
    clip,
    clip_scales,
    measure,
    share_left,
    size_of,
    trust_of,
)
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import State, Tensors

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
    scales: Scales = field(default_factory=dict)
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

    def __init__(
        self, config: AggregationConfig, manifest: Manifest, *, factor: float, told: Iterable[str] = ()
    ) -> None:
        """`told`: devices already reported in the log."""
        self._config = config
        self._manifest = manifest
        self._factor = factor
        self._measured: dict[str, Pull] = {}
        self._told = {what: set(told) for what in ("claim", "clip", "left out")}

    def note(self, update: str, state: Tensors, base: State) -> None:
        """Measure an update while it is decoded anyway; `update` is its hash."""
        self._measured[update] = measure(state, base, self._manifest)

    def judge(
        self,
        claims: Mapping[str, int],
        updates: Mapping[str, str],
        load: Callable[[str], Tensors],
        *,
        base: State,
    ) -> dict[str, Share]:
        """Return each device's share, given the samples it claims and the hash of its update.

        Loads the updates that only an earlier process has measured.
        """
        pulls = {
            device: self._measured.get(update) or measure(load(device), base, self._manifest)
            for device, update in updates.items()
        }
        self._measured.clear()
        weights = weigh(claims, self._config)
        size = size_of(base)
        scales = clip_scales(pulls, weights, size=size, factor=self._factor)
        trust = trust_of(pulls, weights, size=size, manifest=self._manifest, factor=self._factor)
        shares = {
            device: Share(
                claim,
                weights[device],
                cut=self._config.weights == "samples" and weights[device] < claim,
                scales=scales.get(device, {}),
                left=share_left(pulls[device].change, scales.get(device, {})),
                trust=trust.get(device, 1.0),
            )
            for device, claim in claims.items()
        }
        self._tell(shares)
        return shares

    def bound(
        self, updates: Iterable[tuple[int, Tensors]], shares: Iterable[Share], *, base: State
    ) -> Iterator[tuple[float, Tensors]]:
        """Yield the updates as (weight, state), clipped where necessary."""
        for (_, state), share in zip(updates, shares, strict=True):
            weight = share.weight if share.trust == 1 else share.weight * share.trust
            yield weight, state if not share.scales else clip(state, base, self._manifest, share.scales)
            # Free it before the next one is decoded.
            del state

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
