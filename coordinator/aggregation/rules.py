"""The rules that combine a round's updates into one model, listed in RULES; docs/explanation/security.md compares them.

An entry that a device pruned counts as zero, as in the plain mean, or as the model's own value if devices prune their
changes (`uplink = "delta"`). Each rule's docstring says what that means for it. All rules take updates in device order,
already weighed and clipped (claims.py, norms.py), and compute in float64: the same updates give the same bits.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sparsyedge.coordinator.aggregation.alignment import Comparison, compare
from sparsyedge.coordinator.aggregation.entry_blocks import EntryBlock, entry_stretches, other_blocks, weight_blocks
from sparsyedge.coordinator.aggregation.mean import average, gathered
from sparsyedge.coordinator.aggregation.round_entries import RoundEntries
from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName, least_for_krum
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.tensors import FloatArray
from sparsyedge.edge.wire.flat_frame import FlatUpdate

__all__ = ["RULES", "RoundContext", "Rule", "make_entry_rule", "make_rule", "mean"]

Numbers = NDArray[np.float64]

MIN_PEERS = 7
"""With fewer, an honest device with odd data looks like one that reverses its change: one of the demo's four did."""
MOST_PEERS = 256
"""In larger rounds, each update is compared with those of this many devices, drawn by seed and round."""
DEVIATIONS = 2.0
"""A score must be this many median deviations below the median before we leave the update out."""


@dataclass(frozen=True)
class RoundContext:
    """What a rule needs besides the updates."""

    seed: int = 0
    round_number: int = 0
    left_out: list[int] = field(default_factory=list)
    """Positions of the updates that the rule left out; filled by `combine`."""


def mean(updates: RoundEntries) -> FlatUpdate:
    """Take the mean that the method asks for."""
    return average(updates, senders_only=updates.base.manifest.method.aggregation == "nonzero-mean")


class Rule(ABC):
    """One way to combine updates into a model."""

    clip: ClassVar[float] = 3.0
    """How many times as hard as the median an update may pull before it is clipped; honest ones differ by less."""

    def __init__(self, config: AggregationConfig) -> None:
        self.config = config

    @abstractmethod
    def combine(self, updates: RoundEntries, context: RoundContext) -> FlatUpdate:
        """Combine one or more updates into a model."""

    def why_not(self, method: Method) -> str | None:
        """Return why the rule makes no sense with a method; None if it does."""
        return None


class Mean(Rule):
    """The weighted mean."""

    def combine(self, updates: RoundEntries, context: RoundContext) -> FlatUpdate:
        return mean(updates)


class Clipped(Mean):
    """The weighted mean, with every update clipped to the median pull."""

    clip = 1.0


class EntryRule(Rule):
    """A rule that looks at one entry of all devices at a time."""

    def combine(self, updates: RoundEntries, context: RoundContext) -> FlatUpdate:
        weights, others = updates.weights, updates.base.flat.others.copy()
        for block in other_blocks(updates):
            others[block.positions] = self._combined(block, weights, senders_only=False)
        cut = list(entry_stretches(updates))
        if updates.workers is None:
            return gathered(self.parts(updates, cut), others, updates)
        return gathered(updates.workers.combinations(updates, cut, self.config), others, updates)

    def parts(self, updates: RoundEntries, cut: Sequence[tuple[int, int]]) -> Iterator[tuple[int, FloatArray]]:
        """The start and the combination of each of these stretches of the weights, in order."""
        weights = updates.weights
        for first, last in cut:
            yield first * updates.block, self._part(updates, weights, first, last)

    def _part(self, updates: RoundEntries, weights: Numbers, first: int, last: int) -> FloatArray:
        method, start, size = updates.base.manifest.method, first * updates.block, updates.size(first, last)
        part = np.zeros(size, dtype=np.float32)
        if method.uplink == "delta":
            # Where devices prune changes, what nobody changed stays as it is.
            part[...] = updates.base.flat.weights[start : start + size]
        for block in weight_blocks(updates, first, last):
            senders_only = method.aggregation == "nonzero-mean"
            part[block.positions - start] = self._combined(block, weights, senders_only=senders_only)
        return part

    def _combined(self, block: EntryBlock, weights: Numbers, *, senders_only: bool) -> FloatArray:
        values = self.combine_entries(block, weights, senders_only=senders_only)
        # Avoid -0.0, as in the plain mean: it would cost an entry on the wire.
        combined: FloatArray = values.astype(np.float32) + np.float32(0.0)
        return combined

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

    def combine(self, updates: RoundEntries, context: RoundContext) -> FlatUpdate:
        devices = len(updates.members)
        chosen: Sequence[int] = range(devices)
        if devices >= self.fewest(devices):
            chosen = self.choose(compare(updates, self.peers(devices, context)))
        context.left_out[:] = sorted(set(range(devices)) - set(chosen))
        return mean(updates.only(chosen))

    def fewest(self, devices: int) -> int:
        """How many devices a round needs before any can be left out."""
        return 0

    def peers(self, devices: int, context: RoundContext) -> Sequence[int]:
        """Whom to compare every device with."""
        return range(devices)

    @abstractmethod
    def choose(self, found: Comparison) -> Sequence[int]:
        """Return the devices to average, in device order, given the inner products of their changes."""


class Aligned(ChoosingRule):
    """The weighted mean of the updates that do not point against the others.

    An update's score is the median of its cosines with its peers. A device with odd data scores near zero, and we need
    it for that data. A device that reverses its change scores below zero, and far below its peers. We leave out only
    the latter, so a round without hostile members rarely loses anybody.
    """

    clip = 2.0

    def fewest(self, devices: int) -> int:
        return MIN_PEERS

    def peers(self, devices: int, context: RoundContext) -> Sequence[int]:
        """All devices of a small round, a sample of a large one: all pairs of thousands would take hours."""
        if devices <= MOST_PEERS:
            return range(devices)
        return sorted(random.Random(f"{context.seed} {context.round_number}").sample(range(devices), MOST_PEERS))

    def choose(self, found: Comparison) -> Sequence[int]:
        devices = len(found.products)
        norms = np.sqrt(found.squares)
        scale = np.outer(norms, norms[found.peers])
        cosines = np.divide(found.products, scale, out=np.zeros_like(found.products), where=scale > 0)
        place = {device: column for column, device in enumerate(found.peers)}
        scores = np.array(
            [
                np.median(np.delete(cosines[device], place[device]) if device in place else cosines[device])
                for device in range(devices)
            ]
        )
        middle = float(np.median(scores))
        least = min(0.0, middle - DEVIATIONS * float(np.median(np.abs(scores - middle))))
        return [device for device in range(devices) if scores[device] >= least]


class Krum(ChoosingRule):
    """The weighted mean of the updates closest to their peers, as many as we assume to be honest.

    An update's score is the sum of squared distances to its nearest peers, over trained entries that devices keep.
    """

    def choose(self, found: Comparison) -> Sequence[int]:
        products = found.products
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


RULES: dict[RuleName, type[Rule]] = {
    "mean": Mean,
    "clipped": Clipped,
    "trimmed": Trimmed,
    "median": Median,
    "krum": Krum,
    "aligned": Aligned,
}


def make_entry_rule(config: AggregationConfig) -> EntryRule:
    """Make a configured rule that looks at one entry at a time."""
    rule = RULES[config.rule](config)
    assert isinstance(rule, EntryRule)
    return rule


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
