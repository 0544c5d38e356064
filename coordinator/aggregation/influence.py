"""How much each update of a round counts: the weight that it has, and how far it may move the model.

Decided when a round closes, from all of its updates, so that it does not matter who came first. A coordinator that was
killed decides the same again, since it decides from the frames on disk.
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
"""Honest updates are clipped too, but seldom to less than this share of their norm."""

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
    """The share of its weight that is left, less than 1 where it prunes far more than others."""
    left_out: bool = False
    """Whether the rule left it out."""

    @property
    def clipped(self) -> float:
        """The share of its change's norm that is left: 1 for all of it, 0 for an update that the rule left out."""
        return 0.0 if self.left_out else self.left * self.trust


class Influence:
    """Judges the updates of one run, round by round."""

    def __init__(
        self, config: AggregationConfig, manifest: Manifest, *, factor: float, told: Iterable[str] = ()
    ) -> None:
        """`told` are devices of which the log has heard already."""
        self._config = config
        self._manifest = manifest
        self._factor = factor
        self._measured: dict[str, Pull] = {}
        self._told = {what: set(told) for what in ("claim", "clip", "left out")}

    def note(self, update: str, state: Tensors, base: State) -> None:
        """Measure an update, known by its hash, while it is decoded anyway."""
        self._measured[update] = measure(state, base, self._manifest)

    def judge(
        self,
        claims: Mapping[str, int],
        updates: Mapping[str, str],
        load: Callable[[str], Tensors],
        *,
        base: State,
    ) -> dict[str, Share]:
        """The share of every device, from the samples that it claims; `updates` has their hashes.

        Those that were noted by an earlier process are loaded again.
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
        """The updates as (weight, state), clipped where they must be."""
        for (_, state), share in zip(updates, shares, strict=True):
            weight = share.weight if share.trust == 1 else share.weight * share.trust
            yield weight, state if not share.scales else clip(state, base, self._manifest, share.scales)
            # Let go before the next one is decoded.
            del state

    def leave_out(self, shares: Mapping[str, Share], devices: Collection[str]) -> dict[str, Share]:
        """The shares after a rule did without the updates of these devices."""
        for device in devices:
            if self._first("left out", device):
                log.warning(
                    "the update of device %s is left out by rule %s, by what its peers sent", device, self._config.rule
                )
        return {device: replace(share, left_out=device in devices) for device, share in shares.items()}

    def _tell(self, shares: Mapping[str, Share]) -> None:
        """One line per device and run, since a hostile one would fill the log; a little is clipped of many."""
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
