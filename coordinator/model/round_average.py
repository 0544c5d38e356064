"""One model from the updates of a round: weighed, bounded, combined by the run's rule, and masked by its method."""

from __future__ import annotations

import numpy as np

from sparsyedge.coordinator.aggregation.influence import Influence, Share
from sparsyedge.coordinator.aggregation.measures import pruned_exactly
from sparsyedge.coordinator.aggregation.method_rules import masked
from sparsyedge.coordinator.aggregation.pair_cosines import mean_pair_cosine
from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.aggregation.rules import RoundContext, Rule, mean
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.round_updates import RoundUpdates
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.wire.flat_frame import FlatUpdate

__all__ = ["RoundAverage"]


class RoundAverage:
    """Averages rounds of one run. Without a rule and an influence, every update counts for the samples it claims."""

    def __init__(
        self,
        config: RunConfig,
        *,
        updates: RoundUpdates,
        store: Store,
        rule: Rule | None,
        influence: Influence | None,
    ) -> None:
        self._config = config
        self._updates = updates
        self._store = store
        self._rule = rule
        self._influence = influence

    def judge(self, round_number: int, hashes: dict[str, str], base: RoundBase) -> dict[str, Share]:
        """Decide how much each device's update counts, by the hash of each."""
        claims = self._store.samples(round_number)
        claims = {device: claims[device] for device in hashes}
        if self._influence is None:
            return {device: Share(claim, claim) for device, claim in claims.items()}
        decoded = self._updates.decoded
        return self._influence.judge(
            claims,
            {device: decoded[update].measures for device, update in hashes.items()},
            base,
            pruned_exactly=lambda device: pruned_exactly(decoded.update(hashes[device]), base),
        )

    def pair_cosine(self, hashes: dict[str, str]) -> float | None:
        """Return the mean cosine between the updates of two devices, as they were sent; None for a single device."""
        if len(hashes) < 2:
            return None
        decoded = self._updates.decoded
        norms = np.stack([decoded[update].measures.norms for update in hashes.values()])
        return mean_pair_cosine(decoded.entries([(update, 1.0, {}) for update in hashes.values()]), norms)

    def combine(
        self, round_number: int, hashes: dict[str, str], shares: dict[str, Share]
    ) -> tuple[FlatUpdate, dict[str, Share]]:
        """Return the average with the method's mask, and what each update counted for in it."""
        updates = self._updates.decoded.entries(
            [(hashes[device], _weight(share), share.scales) for device, share in shares.items()]
        )
        context = RoundContext(seed=self._config.seed, round_number=round_number)
        combined = mean(updates) if self._rule is None else self._rule.combine(updates, context)
        if self._influence is not None:
            devices = tuple(shares)
            shares = self._influence.leave_out(shares, [devices[place] for place in context.left_out])
        return masked(combined, updates, round_number=round_number, rounds=self._config.rounds), shares


def _weight(share: Share) -> float:
    return share.weight if share.trust == 1 else share.weight * share.trust
