"""The rules that combine a round's updates into one model, listed in RULES; docs/explanation/security.md compares them.

An entry that a device pruned counts as zero, as in the plain mean, or as the model's own value if devices prune their
changes (`uplink = "delta"`). Each rule's docstring says what that means for it. All rules take updates in device order,
already weighed and clipped (claims.py, norms.py), and compute in float64: the same updates give the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.kept_entries import EntryBlock, KeptEntries
from sparsyedge.coordinator.aggregation.mean import average
from sparsyedge.coordinator.aggregation.method_rules import average_nonzero
from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName, least_for_krum
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.tensors import FloatArray, State, Tensors

__all__ = ["RULES", "RoundContext", "Rule", "make_rule"]

Updates = Iterable[tuple[float, Tensors]]
Numbers = NDArray[np.float64]

MIN_PEERS = 7
"""With fewer, an honest device with odd data looks like one that reverses its change: one of the demo's four did."""
DEVIATIONS = 2.0
"""A score must be this many median deviations below the median before we leave the update out."""


@dataclass(frozen=True)
class RoundContext:
    """What a rule needs besides the updates."""

    manifest: Manifest
    base: State
    """The model that the updates start from."""
    devices: int
    scratch: Path
    """A folder on a disk with room for a second copy of the updates."""
    left_out: list[int] = field(default_factory=list)
    """Positions of the updates that the rule left out; filled by `combine`."""

    def keep(self, updates: Updates) -> KeptEntries:
        """Write the updates to disk for entry-by-entry comparison."""
        method = self.manifest.method
        names = () if method.uplink == "whole" else self.manifest.prunable
        rest = {name: self.base[name] if method.uplink == "delta" else None for name in names}
        return KeptEntries(self.scratch, devices=self.devices, rest=rest).add_all(updates)

    def mean(self, updates: Updates) -> State:
        """Take the mean that the method asks for."""
        if self.manifest.method.aggregation == "mean":
            return average(updates)
        return average_nonzero(updates, self.manifest.prunable)


class Rule(ABC):
    """One way to combine updates into a model."""

    clip: ClassVar[float] = 3.0
    """How many times as hard as the median an update may pull before it is clipped; honest ones differ by less."""

    def __init__(self, config: AggregationConfig) -> None:
        self.config = config

    @abstractmethod
    def combine(self, updates: Updates, context: RoundContext) -> State:
        """Combine one or more updates into a model."""

    def why_not(self, method: Method) -> str | None:
        """Return why the rule makes no sense with a method; None if it does."""
        return None


class Mean(Rule):
    """The weighted mean."""

    def combine(self, updates: Updates, context: RoundContext) -> State:
        return context.mean(updates)


class Clipped(Mean):
    """The weighted mean, with every update clipped to the median pull."""

    clip = 1.0


class EntryRule(Rule):
    """A rule that looks at one entry of all devices at a time."""

    def combine(self, updates: Updates, context: RoundContext) -> State:
        with context.keep(updates) as kept:
            return {name: self._combine_tensor(kept, name, context.manifest) for name in kept.names}

    def _combine_tensor(self, kept: KeptEntries, name: str, manifest: Manifest) -> FloatArray:
        tensor = kept.rest_of(name)
        weights = np.array(kept.weights, dtype=np.float64)
        senders_only = manifest.method.aggregation == "nonzero-mean" and name in manifest.prunable
        for block in kept.blocks(name):
            values = self.combine_entries(block, weights, senders_only=senders_only)
            # Avoid -0.0, as in the plain mean: it would cost an entry on the wire.
            tensor.reshape(-1)[block.positions] = values.astype(np.float32) + np.float32(0.0)
        return tensor

    @abstractmethod
    def combine_entries(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> Numbers:
        """One value per position; `senders_only`: the method averages over the devices that sent the entry."""


class Trimmed(EntryRule):
    """The weighted mean of each entry without its largest and smallest values.

    A pruned entry counts as a zero. So if only as many devices keep an entry as are trimmed at one end, it is zero in
    the model: all of those devices may be hostile, and at least one more must keep the entry.
    """

    def combine_entries(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> Numbers:
        devices = len(block.values)
        # Add an epsilon: 0.2 of 15 devices must give 3 despite float rounding.
        trimmed = min(math.floor(self.config.trim * devices + 1e-9), (devices - 1) // 2)
        order = np.argsort(block.values, axis=0, kind="stable")[trimmed : devices - trimmed]
        values = np.take_along_axis(block.values, order, axis=0).astype(np.float64)
        counted = weights[order]
        if senders_only:
            counted = np.where(np.take_along_axis(block.kept, order, axis=0), counted, 0.0)
        totals = counted.sum(axis=0)
        means: Numbers = np.zeros_like(totals)
        np.divide((values * counted).sum(axis=0), totals, out=means, where=totals > 0)
        return means


class Median(EntryRule):
    """The unweighted median of each entry over the devices that keep it, if they are more than half.

    The median over all devices would be near zero wherever a third of them prune, which is nearly everywhere.
    """

    def combine_entries(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> Numbers:
        keepers = block.kept.sum(axis=0)
        # Sort pruned values to the end. Positions that nobody keeps have no median and take the rest value below.
        ranked = np.sort(np.where(block.kept, block.values.astype(np.float64), np.inf), axis=0)
        lower, upper = (np.maximum(middle, 0)[np.newaxis] for middle in ((keepers - 1) // 2, keepers // 2))
        upper = np.minimum(upper, len(ranked) - 1)
        medians = (np.take_along_axis(ranked, lower, axis=0) + np.take_along_axis(ranked, upper, axis=0))[0] / 2
        return np.where(2 * keepers > len(ranked), medians, block.rest)

    def why_not(self, method: Method) -> str | None:
        if method.uplink != "delta":
            return None
        return (
            'devices send a small part of their changes (`uplink = "delta"`), hardly an entry is changed by more than '
            "half of them, and the model would stay as it is"
        )


class ChoosingRule(Rule):
    """A rule that leaves some updates out and averages the others."""

    def combine(self, updates: Updates, context: RoundContext) -> State:
        with context.keep(updates) as kept:
            chosen = self.choose(_products(kept, context))
            context.left_out[:] = sorted(set(range(len(kept.weights))) - set(chosen))
            return context.mean((kept.weights[device], kept.update(device)) for device in chosen)

    @abstractmethod
    def choose(self, products: Numbers) -> Sequence[int]:
        """Return the devices to average, in device order, given the inner products of their changes."""


class Aligned(ChoosingRule):
    """The weighted mean of the updates that do not point against the others.

    An update's score is the median of its cosines with its peers. A device with odd data scores near zero, and we need
    it for that data. A device that reverses its change scores below zero, and far below its peers. We leave out only
    the latter, so a round without hostile members rarely loses anybody.
    """

    clip = 2.0

    def choose(self, products: Numbers) -> Sequence[int]:
        devices = len(products)
        if devices < MIN_PEERS:
            return range(devices)
        norms = np.sqrt(np.diag(products))
        scale = np.outer(norms, norms)
        cosines = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
        scores = np.array([np.median(np.delete(cosines[device], device)) for device in range(devices)])
        middle = float(np.median(scores))
        least = min(0.0, middle - DEVIATIONS * float(np.median(np.abs(scores - middle))))
        return [device for device in range(devices) if scores[device] >= least]


class Krum(ChoosingRule):
    """The weighted mean of the updates closest to their peers, as many as we assume to be honest.

    An update's score is the sum of squared distances to its nearest peers, over trained entries that devices keep.
    """

    def choose(self, products: Numbers) -> Sequence[int]:
        devices = len(products)
        byzantine = devices // 5 if self.config.byzantine is None else self.config.byzantine
        # A round may close with fewer updates than the cohort has members.
        while byzantine and least_for_krum(byzantine) > devices:
            byzantine -= 1
        if byzantine == 0:
            return range(devices)
        squares = np.diag(products)
        distances = np.maximum(squares[:, np.newaxis] + squares - 2 * products, 0.0)
        np.fill_diagonal(distances, 0.0)
        nearest = np.sort(distances, axis=1)[:, 1 : devices - byzantine - 1]
        order = np.argsort(nearest.sum(axis=1), kind="stable")
        return sorted(int(device) for device in order[: devices - byzantine])


def _products(kept: KeptEntries, context: RoundContext) -> Numbers:
    """Return the inner products of all pairs of changes; entries that a device does not keep count as unchanged."""
    devices = len(kept.weights)
    products = np.zeros((devices, devices))
    for name in (parameter.name for parameter in context.manifest.parameters if parameter.trainable):
        base = context.base[name].reshape(-1)
        for block in kept.blocks(name):
            near = base[block.positions].astype(np.float64)
            changes = np.where(block.kept, block.values - near, 0.0)
            products += changes @ changes.T
    return products


RULES: dict[RuleName, type[Rule]] = {
    "mean": Mean,
    "clipped": Clipped,
    "trimmed": Trimmed,
    "median": Median,
    "krum": Krum,
    "aligned": Aligned,
}


def make_rule(config: AggregationConfig, method: Method) -> Rule:
    """Make the configured rule; raises ConfigError if it makes no sense with the method."""
    rule = RULES[config.rule](config)
    reason = rule.why_not(method)
    if reason is not None:
        others = ", ".join(name for name, other in RULES.items() if other(config).why_not(method) is None)
        raise ConfigError(
            f"key `aggregation.rule` has value {config.rule!r}, which makes no sense with this run's method: {reason}; "
            f"allowed are {others}"
        )
    return rule
