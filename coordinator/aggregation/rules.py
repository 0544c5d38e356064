"""The rules that make one model of a round's updates: a row of RULES each, compared in docs/explanation/security.md.

An entry that a device pruned is zero there, as in the plain mean, or the model's own value where devices prune their
changes (`uplink = "delta"`). What that means for a rule is said with the rule. All of them take updates that were
weighed and clipped before (claims.py, norms.py), in device order, and count in float64: the same updates give the same
bits.
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
"""Of fewer, an honest device with odd data looks like one that turns its change round: one of the demo's four did."""
DEVIATIONS = 2.0
"""How many median deviations below the median a score must be."""


@dataclass(frozen=True)
class RoundContext:
    """What a rule must know beside the updates."""

    manifest: Manifest
    base: State
    """The model that the updates start from."""
    devices: int
    scratch: Path
    """A folder on a disk with room for the updates once more."""
    left_out: list[int] = field(default_factory=list)
    """The updates that a rule did without, by their place, once it has combined them."""

    def keep(self, updates: Updates) -> KeptEntries:
        """The updates side by side."""
        method = self.manifest.method
        names = () if method.uplink == "whole" else self.manifest.prunable
        rest = {name: self.base[name] if method.uplink == "delta" else None for name in names}
        return KeptEntries(self.scratch, devices=self.devices, rest=rest).add_all(updates)

    def mean(self, updates: Updates) -> State:
        """The mean that the method asks for."""
        if self.manifest.method.aggregation == "mean":
            return average(updates)
        return average_nonzero(updates, self.manifest.prunable)


class Rule(ABC):
    """One way to make a model of updates."""

    clip: ClassVar[float] = 3.0
    """How many times as hard as the median an update may pull before it is clipped; honest ones differ by less."""

    def __init__(self, config: AggregationConfig) -> None:
        self.config = config

    @abstractmethod
    def combine(self, updates: Updates, context: RoundContext) -> State:
        """The model of at least one update."""

    def why_not(self, method: Method) -> str | None:
        """Why the rule makes no sense with a method; None where it does."""
        return None


class Mean(Rule):
    """The mean by weight."""

    def combine(self, updates: Updates, context: RoundContext) -> State:
        return context.mean(updates)


class Clipped(Mean):
    """The mean of updates of which none pulls harder than the median one."""

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
            # As in the plain mean: no -0.0, which would be another entry on the wire.
            tensor.reshape(-1)[block.positions] = values.astype(np.float32) + np.float32(0.0)
        return tensor

    @abstractmethod
    def combine_entries(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> Numbers:
        """One value per position; `senders_only`: the method averages over the devices that sent the entry."""


class Trimmed(EntryRule):
    """The mean by weight of what is left of each entry without the largest and the smallest values.

    A pruned entry is a zero among the others. So an entry that no more devices keep than are trimmed at one end is
    zero in the model: that many may be hostile, and a mask must have somebody else behind it.
    """

    def combine_entries(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> Numbers:
        devices = len(block.values)
        # A trifle more, so that 0.2 of 15 devices are 3 whatever the product of the floats is.
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
    """The median of each entry over the devices that keep it, if they are more than half; one device, one vote.

    The median over all devices would be near zero wherever a third of them prune, which is nearly everywhere.
    """

    def combine_entries(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> Numbers:
        keepers = block.kept.sum(axis=0)
        # What is not kept goes behind everything that is, and a position that nobody keeps has no middle.
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
    """A rule that leaves some updates out and takes the mean of the others."""

    def combine(self, updates: Updates, context: RoundContext) -> State:
        with context.keep(updates) as kept:
            chosen = self.choose(_products(kept, context))
            context.left_out[:] = sorted(set(range(len(kept.weights))) - set(chosen))
            return context.mean((kept.weights[device], kept.update(device)) for device in chosen)

    @abstractmethod
    def choose(self, products: Numbers) -> Sequence[int]:
        """The devices to average, in their order, from the inner products of what they change."""


class Aligned(ChoosingRule):
    """The mean by weight of updates that do not go against the others.

    An update's score is the median of its cosines with its peers. A device with odd data goes its own way, with a score
    near zero, and is needed for that data; one that turns its change round has a score below zero, and far below those
    of its peers. Only the latter are left out, so that a round without hostile members seldom loses anybody.
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
    """The mean by weight of the updates that are nearest to others: as many as are thought to be honest.

    An update's score is the sum of its squared distances to its nearest peers, over what is trained and kept.
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
    """The inner products of what every two updates change; what a device does not keep, it does not change."""
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
    """The rule of a config; raises ConfigError where it makes no sense with the method."""
    rule = RULES[config.rule](config)
    reason = rule.why_not(method)
    if reason is not None:
        others = ", ".join(name for name, other in RULES.items() if other(config).why_not(method) is None)
        raise ConfigError(
            f"key `aggregation.rule` has value {config.rule!r}, which makes no sense with this run's method: {reason}; "
            f"allowed are {others}"
        )
    return rule
