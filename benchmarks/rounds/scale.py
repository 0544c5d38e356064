"""From measured rounds to a million devices: what each part costs, what breaks first, what it takes instead. Pure.

Every figure per device is a straight line through the measured sizes: what a device costs, plus what each further
device adds to the cost of every other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparsyedge.benchmarks.rounds.figures import Document, Figures
from sparsyedge.coordinator.rounds.grants import ASKS_PER_S, LEAST_AGAIN_S, MOST_AGAIN_S
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.protocol.messages import MAX_COHORT
from sparsyedge.edge.protocol.mqtt_client import MAX_PACKET_BYTES

__all__ = ["Box", "Costs", "Layout", "Limit", "Line", "costs_of", "layout_of", "limits_of"]

ANNOUNCEMENTS = 2
"""A round's task reaches every device when it opens and when it closes."""
DEFAULT_BROKER_MB_PER_S = 100.0
FARTHEST = 10**9
"""No limit beyond this is worth naming."""


@dataclass(frozen=True)
class Line:
    """A figure as a function of the number of devices: measured where it was, else on the line, never below zero."""

    at_zero: float
    slope: float
    measured: Mapping[int, float] = field(default_factory=dict)

    def __call__(self, devices: float) -> float:
        return self.measured.get(int(devices), max(0.0, self.at_zero + self.slope * devices))


@dataclass(frozen=True)
class Box:
    """A machine, and the time that a round may take."""

    round_s: float
    cores: int
    memory_gb: float
    fsyncs_per_s: float
    connections: int
    """Connections that one broker holds."""


@dataclass(frozen=True)
class Costs:
    """What a device costs in a round, as lines over the number of devices."""

    messages: Line
    """At the broker, both directions."""
    offers: Line
    bytes_up: Line
    bytes_down: Line
    """Model and tasks included."""
    coordinator_cpu_s: Line
    broker_cpu_s: Line
    task_bytes: Line
    coordinator_mb: Line
    """The whole process, not per device."""
    broker_mb: Line
    """The whole process, not per device."""
    fsyncs: float | None
    model_bytes: float
    broker_mb_per_s: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Limit:
    """Something that ends at a number of devices."""

    devices: int
    what: str


@dataclass(frozen=True)
class Layout:
    """What a number of devices takes, either way."""

    devices: int
    brokers: int
    shards: int
    """Coordinators that share one round's devices, each of as many cores as a box has."""
    regions: int
    """Regional coordinators of as many devices as were measured at most, each with a broker."""
    levels: int
    """Levels of coordinators above the devices."""
    root_bytes: float
    """What the root of the tree receives in a round: a weighted sum per child."""
    task_bytes_flat: float
    """All bytes of tasks in a round if each device gets the whole cohort's names."""
    task_bytes_tree: float


def costs_of(documents: Sequence[Document]) -> Costs:
    """Lines through all points; raises ConfigError if the documents do not belong together or have one size only."""
    kinds = {(each.options.width, each.options.codec, each.options.rounds) for each in documents}
    if len(kinds) > 1:
        listed = ", ".join(f"width {w} {c} round {r}" for w, c, r in sorted(kinds))
        raise ConfigError(
            f"the documents measured different things ({listed}); give those of one width, codec and round"
        )
    figures = sorted((p.figures for d in documents for p in d.points), key=lambda each: each.devices)
    sizes = tuple(each.devices for each in figures)
    if len(set(sizes)) < 2:
        raise ConfigError(
            f"a line needs two sizes, and the documents have {sorted(set(sizes))}; "
            f"run `sparsyedge bench rounds --devices 100,1000,10000 --json`"
        )
    peers = [p.peer.mb_per_s for d in documents for p in d.points if p.peer is not None]
    fsyncs = [each.fsyncs_per_update for each in figures if each.fsyncs_per_update is not None]
    model_bytes = statistics.median(each.model_bytes for each in figures)

    def line(value: Callable[[Figures], float]) -> Line:
        values = [value(each) for each in figures]
        measured = {size: statistics.median(value(e) for e in figures if e.devices == size) for size in sizes}
        fitted = statistics.linear_regression(sizes, values)
        if fitted.slope < 0:
            # More devices make nothing cheaper: fixed costs are shared, or the measurement was disturbed.
            return Line(statistics.median(values), 0.0, measured)
        return Line(fitted.intercept, fitted.slope, measured)

    return Costs(
        messages=line(lambda each: each.messages_up + each.messages_down),
        offers=line(lambda each: each.offers),
        bytes_up=line(lambda each: each.bytes_up),
        bytes_down=line(lambda each: each.bytes_down + model_bytes),
        coordinator_cpu_s=line(lambda each: each.coordinator_cpu_s_per_update),
        broker_cpu_s=line(lambda each: each.broker_cpu_s_per_update),
        task_bytes=line(lambda each: each.task_bytes),
        coordinator_mb=line(lambda each: each.coordinator_peak_mb),
        broker_mb=line(lambda each: each.broker_mb),
        fsyncs=statistics.median(fsyncs) if fsyncs else None,
        model_bytes=model_bytes,
        broker_mb_per_s=statistics.median(peers) if peers else DEFAULT_BROKER_MB_PER_S,
        sizes=sizes,
    )


def limits_of(costs: Costs, box: Box) -> list[Limit]:
    """What ends where with one broker and one coordinator, the first to break first."""
    cpu_s, memory_mb = box.round_s * box.cores, box.memory_gb * 1e3
    bandwidth = costs.broker_mb_per_s * 1e6
    checks: list[tuple[Callable[[float], bool], str]] = [
        (
            lambda n: n * costs.coordinator_cpu_s(n) <= cpu_s,
            f"the coordinator's processor time: {box.cores} cores for a round of {box.round_s:g} s",
        ),
        (
            lambda n: n * costs.broker_cpu_s(n) <= box.round_s,
            f"the broker's processor time: Mosquitto has one thread, a round {box.round_s:g} s",
        ),
        (
            lambda n: ANNOUNCEMENTS * n * costs.task_bytes(n) <= bandwidth * box.round_s,
            f"tasks: each lists the cohort and goes to all of it, {ANNOUNCEMENTS} times a round, and the broker moves "
            f"{costs.broker_mb_per_s:.0f} MB/s",
        ),
        (
            lambda n: n * (costs.bytes_up(n) + costs.bytes_down(n)) <= bandwidth * box.round_s,
            f"all bytes through one broker at {costs.broker_mb_per_s:.0f} MB/s",
        ),
        (lambda n: costs.task_bytes(n) <= MAX_PACKET_BYTES, f"the task in one packet of {MAX_PACKET_BYTES >> 20} MiB"),
        (lambda n: n <= MAX_COHORT, f"the largest cohort that the messages allow, {MAX_COHORT}"),
        (lambda n: n <= box.connections, f"connections of one broker ({box.connections}: its open files)"),
        (lambda n: costs.coordinator_mb(n) <= memory_mb, f"the coordinator's memory, {box.memory_gb:g} GB"),
        (lambda n: costs.broker_mb(n) <= memory_mb, f"the broker's memory, {box.memory_gb:g} GB"),
        (
            lambda n: repeats_per_s(n) * costs.coordinator_cpu_s(n) / max(1.0, costs.offers(n)) <= box.cores,
            f"offers: devices that wait ask again {ASKS_PER_S:g} times a second together, each every "
            f"{MOST_AGAIN_S:g} s at least",
        ),
    ]
    if costs.fsyncs:
        each = costs.fsyncs
        checks.append(
            (
                lambda n: n * each <= box.fsyncs_per_s * box.round_s,
                f"{each:g} fsyncs per update on a disk that does {box.fsyncs_per_s:g} a second",
            )
        )
    found = [Limit(_largest(holds), what) for holds, what in checks]
    return sorted((limit for limit in found if limit.devices < FARTHEST), key=lambda limit: limit.devices)


def repeats_per_s(devices: float) -> float:
    """How often devices ask again if so many wait for a place to upload."""
    return devices / min(MOST_AGAIN_S, max(LEAST_AGAIN_S, devices / ASKS_PER_S))


def layout_of(costs: Costs, box: Box, devices: int) -> Layout:
    """Brokers, shards and a tree of regional coordinators for so many devices."""
    region = max(costs.sizes)
    largest = max(1, min(limit.devices for limit in limits_of(costs, box)))
    by_cpu = devices * costs.broker_cpu_s(region) / box.round_s
    by_bytes = (
        devices * (costs.bytes_up(region) + costs.bytes_down(region)) / (costs.broker_mb_per_s * 1e6 * box.round_s)
    )
    members = min(region, largest)
    levels = max(1, math.ceil(math.log(devices) / math.log(max(2, members)) - 1e-9))
    regions = math.ceil(devices / members)
    return Layout(
        devices=devices,
        brokers=max(1, math.ceil(max(by_cpu, by_bytes, devices / box.connections))),
        # Shards share a round: none of them handles more devices than were measured.
        shards=max(1, math.ceil(devices * costs.coordinator_cpu_s(members) / (box.round_s * box.cores))),
        regions=regions,
        levels=levels,
        root_bytes=min(regions, members) * costs.model_bytes,
        task_bytes_flat=ANNOUNCEMENTS * devices * costs.task_bytes(devices),
        task_bytes_tree=ANNOUNCEMENTS * devices * costs.task_bytes(members),
    )


def _largest(holds: Callable[[float], bool]) -> int:
    """The largest number of devices for which it holds, if it holds for fewer too."""
    low, high = 0, 1
    while high < FARTHEST and holds(high):
        low, high = high, 2 * high
    if high >= FARTHEST:
        return FARTHEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
