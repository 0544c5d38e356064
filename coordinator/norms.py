"""How far an update may move the model: ten times as far as the updates of its peers do, by their median.

One device that sends large numbers would outvote all others in a mean. When a round closes, its updates are compared
with each other. On arrival an update is compared with those of the round before and with those that came before it in
its own round, and refused where both say so: a whole fleet may move further than it did (BatchNorm's statistics grow a
hundredfold in round 2 of Top-K), and the first three to arrive may be in league. With fewer than three peers there is
nothing to compare with, and nothing is refused.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from sparsyedge.edge.artifacts import Manifest
from sparsyedge.edge.errors import FrameError, RunError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import FloatArray, State, Tensors

__all__ = ["NORMS_NAME", "NormGuard", "Norms", "measure"]

NORMS_NAME = "norms.json"
FACTOR = 10.0
"""A device with more samples takes more steps and moves the model further, though not in proportion."""
MIN_PEERS = 3
NEGLIGIBLE = 0.001
"""Where nobody moves the model any more, moving it by a hundredth of itself is no attack."""
LARGEST = 1e300
"""Stands for an overflow: JSON knows no infinity."""
KEPT_ROUNDS = 2
"""The reference of the open round, and that of the next one while the open one is being closed."""


class Norms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large an update is, in units of the model that it starts from."""

    weights: float
    """The norm of the change of all trained tensors."""
    statistics: float
    """The norm of BatchNorm's running statistics themselves."""


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The medians of one round's updates."""

    median: Norms
    peers: int


def measure(state: Tensors, base: State, manifest: Manifest, *, unit: Norms | None = None) -> Norms:
    """How large an update is; `unit` is the size of the base, where that is known already."""
    unit = unit or _size(base, manifest)
    running = _running(manifest)
    with np.errstate(over="ignore"):
        change = _norm(state[name] - base[name] for name in _trained(manifest))
    return Norms(weights=change / unit.weights, statistics=_norm(state[name] for name in running) / unit.statistics)


class NormGuard:
    """Compares the updates of a run with each other; what it goes by survives a restart."""

    def __init__(self, run_path: Path, manifest: Manifest) -> None:
        self._path = run_path / NORMS_NAME
        self._manifest = manifest
        self._references = self._load()
        self._measured: dict[str, Norms] = {}
        self._base: State | None = None
        self._unit = Norms(1.0, 1.0)

    def check(self, update: str, state: Tensors, base: State, *, round_number: int) -> None:
        """Raise FrameError for an update, known by its hash, that moves the model too far by all that is known yet."""
        norms = self._measure(state, base)
        before = self._references.get(round_number - 1)
        reason = _reason(norms, _reference(self._measured), "of its peers")
        if reason is not None and before is not None and _reason(norms, before, "of the round before") is not None:
            raise FrameError(reason)
        self._measured[update] = norms

    def close(
        self,
        updates: Mapping[str, str],
        load: Callable[[str], Tensors],
        *,
        base: State,
        round_number: int,
    ) -> dict[str, str]:
        """Which of a round's updates, by device, are left out of the mean, and why.

        What is left is the next round's reference. Updates that an earlier process has checked are loaded once more.
        """
        found = {
            device: self._measured.get(update) or self._measure(load(device), base)
            for device, update in updates.items()
        }
        self._measured.clear()
        # The next round has another base, and this one would stay in memory until its first update comes.
        self._base = None
        reference = _reference(found)
        refused = {
            device: reason
            for device, norms in found.items()
            if (reason := _reason(norms, reference, "of its peers")) is not None
        }
        kept = {device: norms for device, norms in found.items() if device not in refused}
        # Before the round is recorded as closed: a coordinator that is killed in between decides the same again.
        self._references = {
            number: reference
            for number, reference in {**self._references, round_number: _reference(kept)}.items()
            if number > round_number - KEPT_ROUNDS
        }
        write_atomically(self._path, msgspec.json.encode(self._references))
        return refused

    def _measure(self, state: Tensors, base: State) -> Norms:
        if self._base is not base:
            self._base, self._unit = base, _size(base, self._manifest)
        return measure(state, base, self._manifest, unit=self._unit)

    def _load(self) -> dict[int, Reference]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[int, Reference])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise RunError(
                f"cannot read {self._path}: {error}; restore it, or remove it to go on without it"
            ) from error


def _reference(found: Mapping[str, Norms]) -> Reference:
    values = list(found.values()) or [Norms(0.0, 0.0)]
    median = Norms(
        weights=statistics.median(norms.weights for norms in values),
        statistics=statistics.median(norms.statistics for norms in values),
    )
    return Reference(median, len(found))


def _reason(norms: Norms, reference: Reference, whose: str) -> str | None:
    if reference.peers < MIN_PEERS:
        return None
    for what, value, median in (
        ("moves the weights by", norms.weights, reference.median.weights),
        ("has BatchNorm statistics of", norms.statistics, reference.median.statistics),
    ):
        if not value <= FACTOR * max(median, NEGLIGIBLE):
            return (
                f"the update {what} {value:.3g} times the model's norm, the median {whose} is {median:.3g}; "
                f"at most {FACTOR:g} times the median is averaged"
            )
    return None


def _size(base: State, manifest: Manifest) -> Norms:
    """The norms of a model itself, 1 where there is nothing to measure."""
    return Norms(
        weights=_norm(base[name] for name in _trained(manifest)) or 1.0,
        statistics=_norm(base[name] for name in _running(manifest)) or 1.0,
    )


def _trained(manifest: Manifest) -> list[str]:
    return [parameter.name for parameter in manifest.parameters if parameter.trainable]


def _running(manifest: Manifest) -> list[str]:
    return [name for norm in manifest.batch_norms for name in (norm.mean, norm.variance)]


def _norm(tensors: Iterable[FloatArray]) -> float:
    return min(LARGEST, math.sqrt(sum(float(np.vdot(tensor, tensor)) for tensor in tensors)))
