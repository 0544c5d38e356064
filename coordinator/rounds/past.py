"""What a run has on record of a device when a round opens, and the turns that no record can take from a device. Pure.

All figures come from devices, and any of them may lie. So a policy bounds what a figure can gain, and some places of
every cohort do not depend on figures at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["NOTHING", "Past", "figures_or_median", "places_by_turn", "turns_first"]


@dataclass(frozen=True, kw_only=True)
class Past:
    """A device's last turn, and the figures of its last report; None where there are none."""

    last_asked: int = 0
    """The last closed round that asked it for an update; 0 if none has."""
    seconds: float | None = None
    """How long it was at work, from the download to the offer of its update."""
    joules_per_sample: float | None = None
    """What its training took for each of its samples."""
    loss: float | None = None
    """The root mean square of its losses."""
    samples: int = 0
    """How many it claimed."""


NOTHING = Past()
"""Of a device that the run knows nothing of."""

TURNS = 5
"""One place in so many goes by turn, rounded up."""


def places_by_turn(size: int) -> int:
    """How many places of a cohort go to the devices whose last turn is the longest ago."""
    return -(-size // TURNS)


def turns_first(
    order: Sequence[str], size: int, past: Mapping[str, Past], *, lots: Callable[[str], bytes]
) -> list[str]:
    """The order, behind the devices whose last turn is the longest ago; those that never had one come first.

    So in a fleet of n ready devices, each is asked at least once in n / `places_by_turn(size)` rounds, rounded up.
    """
    waiting = sorted(order, key=lambda device: (past.get(device, NOTHING).last_asked, lots(device)))
    first = waiting[: places_by_turn(size)]
    taken = set(first)
    return [*first, *(device for device in order if device not in taken)]


def figures_or_median(
    devices: Iterable[str], figure: Callable[[Past], float | None], past: Mapping[str, Past]
) -> tuple[dict[str, float], float]:
    """The figure of every device, and the median of those on record, which stands for what is not.

    Without any on record all are 1.
    """
    found = {device: figure(past.get(device, NOTHING)) for device in devices}
    known = [value for value in found.values() if value is not None]
    middle = median(known) if known else 1.0
    return {device: middle if value is None else value for device, value in found.items()}, middle
