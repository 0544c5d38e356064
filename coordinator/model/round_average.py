"""Averages a round: decides how much each update counts, and combines the updates by the run's rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from sparsyedge.coordinator.aggregation.influence import Influence, Share
from sparsyedge.coordinator.aggregation.method_rules import combine
from sparsyedge.coordinator.aggregation.rules import RoundContext, Rule
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.round_updates import RoundUpdates
from sparsyedge.coordinator.record.metrics import RoundMetrics
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.tensors import MadeOnDemand, State, Tensors

__all__ = ["RoundAverage"]


class RoundAverage:
    """Averages rounds of one run. Without a rule and an influence, every update counts for the samples it claims."""

    def __init__(
        self,
        config: RunConfig,
        manifest: Manifest,
        *,
        updates: RoundUpdates,
        store: Store,
        rule: Rule | None,
        influence: Influence | None,
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._updates = updates
        self._store = store
        self._rule = rule
        self._influence = influence

    def judge(self, round_number: int, devices: tuple[str, ...], base: State) -> dict[str, Share]:
        """Decide how much each device's update counts."""
        claims, hashes = self._store.samples(round_number), self._store.accepted(round_number)
        claims = {device: claims[device] for device in devices}
        if self._influence is None:
            return {device: Share(claim, claim) for device, claim in claims.items()}
        return self._influence.judge(
            claims,
            {device: hashes[device] for device in devices},
            lambda device: next(self._updates.read(round_number, (device,)))[1],
            base=base,
        )

    def combine(
        self, round_number: int, shares: dict[str, Share], *, base: State, metrics: RoundMetrics
    ) -> tuple[State, dict[str, Share]]:
        """Return the average with the method's mask, and what each update counted for in it."""
        devices = tuple(shares)
        frozen = {name: base[name] for name in self._manifest.frozen}
        updates = _without(metrics.watch(self._updates.read(round_number, devices)), frozen)
        finish = partial(
            combine,
            method=self._manifest.method,
            prunable=self._manifest.prunable,
            round_number=round_number,
            rounds=self._config.rounds,
        )
        if self._influence is None or self._rule is None:
            return finish(updates) | frozen, shares
        context = RoundContext(self._manifest, base, len(devices), self._config.run_path / "updates")
        bounded = self._influence.bound(updates, shares.values(), base=base)
        state = finish(bounded, rule=partial(self._rule.combine, context=context))
        return state | frozen, self._influence.leave_out(shares, [devices[place] for place in context.left_out])


def _without(updates: Iterable[tuple[int, Tensors]], frozen: Collection[str]) -> Iterator[tuple[int, Tensors]]:
    """The updates without what is the same in all of them; averaging that would only cost time."""
    for samples, state in updates:
        yield samples, MadeOnDemand([name for name in state if name not in frozen], state.__getitem__)
        # Free it before the next one is decoded.
        del state
