"""The figures of `bench rounds` as text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sparsyedge.benchmarks.rounds.figures import Document, Point

__all__ = ["describe"]


def describe(document: Document) -> str:
    """All figures, and for several sizes the lines through them."""
    return "\n".join(_lines(document))


def _lines(document: Document) -> Iterator[str]:
    options = document.options
    yield f"round {options.rounds}, width {options.width}, codec {options.codec}, {options.variants} variants"
    yield from document.notes
    for point in document.points:
        yield ""
        yield from _point(point)
    if document.fit is not None:
        fit = document.fit
        yield ""
        yield "devices  ms/update  of the coordinator's processor  offers  ms to the first  ms/update after it"
        for devices, milliseconds in fit.ms_per_update.items():
            own, offers = fit.coordinator_cpu_ms_per_update[devices], fit.offers[devices]
            first, later = fit.first_ms[devices], fit.later_ms_per_update[devices]
            yield f"{devices:>7}  {milliseconds:9.2f}  {own:30.2f}  {offers:6.2f}  {first:15.0f}  {later:18.2f}"
        yield f"slowest over fastest: {fit.slowest_over_fastest:g} (flat within 20 % is 1.2)"
        yield (
            f"the coordinator's memory per device: {fit.bytes_per_device:.0f} bytes at its peak, "
            f"{fit.private_bytes_per_device:.0f} without mapped files, "
            f"{fit.joined_bytes_per_device:.0f} before the first update"
        )


def _point(point: Point) -> Iterator[str]:
    for name, value in msgspec.structs.asdict(point.figures).items():
        if value is None or value == ():
            continue
        shown = f"{value:g}" if isinstance(value, float) else value
        yield f"{name:<29} {shown}"
    if point.repeats > 1:
        spread = point.updates_per_s_spread
        yield f"{'updates_per_s, lowest, highest':<29} {spread.low:g}, {spread.high:g} in {point.repeats} runs"
    if point.peer is not None:
        peer = point.peer
        yield f"Mosquitto alone: {peer.updates_per_s:g} updates/s, {peer.mb_per_s:g} MB/s; {peer.subscriber}"
        yield f"the coordinator takes {point.peer_ratio:.0%} of that"
