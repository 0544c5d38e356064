"""The figures of `bench rounds`: of one run, medians over repeats, and lines through several sizes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

__all__ = [
    "Document",
    "Figures",
    "Fit",
    "Options",
    "PeerFigures",
    "Point",
    "Spread",
    "fit_of",
    "median_of",
    "point_of",
    "split_of",
]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The last round of one run. Times are seconds, `mb` are megabytes (10^6 bytes).

    What has a default is missing in older documents.
    """

    devices: int
    accepted: int
    """Updates of this round in the run's store."""
    lost: int
    """Updates that nobody recorded, and updates that were confirmed to a device but not recorded."""
    counted_twice: int
    """Rows and weights in the store beyond one per device."""
    answered_again: int
    """Devices whose second offer of the same update was answered, as after a lost answer."""
    seconds: float
    """From the moment all devices may offer to the last acceptance in the store."""
    updates_per_s: float
    ms_per_update: float
    """`seconds` over the number of updates."""
    first_ms: float = 0.0
    """Of these seconds, those until the first update was accepted."""
    later_ms_per_update: float = 0.0
    """The others, over the updates after the first."""
    mb_per_s: float
    update_bytes: float
    """The mean size of an update."""
    chunks_per_update: float
    p50_s: float
    """From a device's first offer to the confirmation that its update is recorded."""
    p99_s: float
    close_s: float | None
    """From the last acceptance to the record of the closed round: mean, encode, record; no evaluation."""
    coordinator_cpu_s_per_update: float
    """User and system time of the coordinator and its worker processes."""
    broker_cpu_s_per_update: float
    devices_cpu_s_per_update: float
    coordinator_start_mb: float = 0.0
    """The most before it waited for devices: it reads and encodes whole models then."""
    coordinator_idle_mb: float
    """Waiting for devices, with the worker processes."""
    coordinator_joined_mb: float
    """Once all devices are online and the round is open."""
    coordinator_round_mb: float
    """The most until the round was closed."""
    coordinator_peak_mb: float
    """The most until the process ended, evaluation and delivery of the model included; workers and all."""
    coordinator_private_mb: float
    """The most without files that are mapped into memory, and without memory that processes share."""
    worker_mb: tuple[float, ...]
    """Each worker process's own peak."""
    growth_models: float
    """From idle to peak, in dense models. Pages that processes share count for each of them."""
    growth_round_models: float = 0.0
    """From idle until the round was closed: without the evaluation and the delivery of the model."""
    growth_once_models: float | None = None
    """As `growth_models` with shared pages counted once; only with worker processes."""
    model_mb: float
    """One dense model."""
    broker_mb: float
    messages_up: float
    """Messages that a device sent in the round."""
    messages_down: float
    bytes_up: float
    """Bytes that a device sent in the round, MQTT's own included."""
    bytes_down: float
    """Without the model, which each process of devices fetched once: see `model_bytes`."""
    offers: float
    """How often a device offered, on average."""
    model_bytes: int
    """The round's model as devices fetch it."""
    task_bytes: int
    """The round's task, which every device receives."""
    join_s: float
    """From the first connect until the last device had the first round's task."""
    lost_connections: int
    fsyncs_per_update: float | None = None
    """fsync and fdatasync calls of the coordinator while it took updates; only with --fsyncs."""


class PeerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What Mosquitto alone moved."""

    subscriber: str
    seconds: float
    updates_per_s: float
    mb_per_s: float
    broker_cpu_s_per_update: float
    broker_mb: float


class Spread(msgspec.Struct, frozen=True):
    """The lowest and highest of the repeats."""

    low: float
    high: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One number of devices: medians over the repeats."""

    figures: Figures
    updates_per_s_spread: Spread
    peer: PeerFigures | None = None
    peer_ratio: float | None = None
    """Updates per second of the coordinator over those of the peer: the median of the pairs."""
    repeats: int = 1


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Lines through the points of several sizes."""

    bytes_per_device: float
    """The slope of the coordinator's peak growth over the number of devices."""
    private_bytes_per_device: float
    """The same without mapped files and shared memory."""
    joined_bytes_per_device: float
    """The slope of its growth before the first update."""
    ms_per_update: dict[int, float]
    """Time per update by number of devices."""
    slowest_over_fastest: float
    """1.2 is flat within 20 %."""
    coordinator_cpu_ms_per_update: dict[int, float] = msgspec.field(default_factory=dict)
    offers: dict[int, float] = msgspec.field(default_factory=dict)
    """How often a device offered."""
    first_ms: dict[int, float] = msgspec.field(default_factory=dict)
    """Until the first update was accepted."""
    later_ms_per_update: dict[int, float] = msgspec.field(default_factory=dict)
    """From then on, by number of devices."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured."""

    width: int
    codec: str
    rounds: int
    """The round that the figures describe; the ones before it prepare it."""
    variants: int
    repeat: int
    peer: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run of `bench rounds`."""

    machine: dict[str, object]
    options: Options
    points: tuple[Point, ...]
    fit: Fit | None = None
    notes: tuple[str, ...] = ()


def split_of(times_s: Sequence[float]) -> tuple[float, float]:
    """How long the first update took, and each one after it, given when each was accepted; in ms.

    Updates are accepted in batches. Two readings make no line, so this is no split into fixed and variable costs.
    """
    if not times_s:
        return 0.0, 0.0
    first, last = min(times_s), max(times_s)
    return 1000 * first, 1000 * (last - first) / max(1, len(times_s) - 1)


def median_of(runs: Sequence[Figures]) -> Figures:
    """The median of each figure, and the worst of those that must be zero."""
    worst = {"lost": max, "counted_twice": max, "lost_connections": max, "accepted": min, "answered_again": min}
    values: dict[str, object] = {}
    for name in Figures.__struct_fields__:
        found = [getattr(run, name) for run in runs]
        if name in worst:
            values[name] = worst[name](found)
        elif name == "worker_mb":
            values[name] = max(found, key=sum)
        elif any(each is None for each in found):
            values[name] = None
        else:
            middle = statistics.median(found)
            values[name] = int(middle) if isinstance(found[0], int) else middle
    return Figures(**values)  # type: ignore[arg-type]


def point_of(runs: Sequence[Figures], peers: Sequence[PeerFigures]) -> Point:
    """Medians over repeats; the i-th peer ran right after the i-th run."""
    rates = [run.updates_per_s for run in runs]
    middle = None
    if peers:
        middle = sorted(peers, key=lambda peer: peer.updates_per_s)[len(peers) // 2]
    pairs = [run.updates_per_s / peer.updates_per_s for run, peer in zip(runs, peers, strict=False)]
    return Point(
        figures=median_of(runs),
        updates_per_s_spread=Spread(min(rates), max(rates)),
        peer=middle,
        peer_ratio=round(statistics.median(pairs), 3) if pairs else None,
        repeats=len(runs),
    )


def fit_of(points: Sequence[Point]) -> Fit | None:
    """Lines through the points; None for a single size."""
    figures = sorted((point.figures for point in points), key=lambda each: each.devices)
    sizes = [each.devices for each in figures]
    if len(set(sizes)) < 2:
        return None
    times = {each.devices: each.ms_per_update for each in figures}
    grown = [each.coordinator_peak_mb - each.coordinator_idle_mb for each in figures]
    private = [each.coordinator_private_mb for each in figures]
    joined = [each.coordinator_joined_mb - each.coordinator_idle_mb for each in figures]
    return Fit(
        bytes_per_device=round(1e6 * statistics.linear_regression(sizes, grown).slope),
        private_bytes_per_device=round(1e6 * statistics.linear_regression(sizes, private).slope),
        joined_bytes_per_device=round(1e6 * statistics.linear_regression(sizes, joined).slope),
        ms_per_update=times,
        slowest_over_fastest=round(max(times.values()) / min(times.values()), 2),
        coordinator_cpu_ms_per_update={
            each.devices: round(1000 * each.coordinator_cpu_s_per_update, 3) for each in figures
        },
        offers={each.devices: each.offers for each in figures},
        first_ms={each.devices: each.first_ms for each in figures},
        later_ms_per_update={each.devices: each.later_ms_per_update for each in figures},
    )
