"""Offers of devices that wait for a place to upload, so that the next one can be called as soon as a place is free.

A device repeats its offer every few seconds. Without this, a place would stay empty until somebody happens to ask.
"""

from __future__ import annotations

from sparsyedge.coordinator.rounds.events import OfferReceived

__all__ = ["WaitingOffers"]

FRESH_S = 15.0
"""A waiting device asks again within five seconds; after this much silence it is gone."""


class WaitingOffers:
    """The last offer of each waiting device, the longest wait first: some kilobytes per device at most."""

    def __init__(self) -> None:
        self._offers: dict[str, tuple[OfferReceived, float]] = {}

    def __contains__(self, device: str) -> bool:
        return device in self._offers

    def put(self, event: OfferReceived, now_s: float) -> None:
        """Note that a device asked and got no place; it keeps its turn."""
        self._offers[event.device] = (event, now_s)

    def remove(self, device: str) -> None:
        """Forget a device that waits no more."""
        self._offers.pop(device, None)

    def clear(self) -> None:
        """Forget everybody: the round is over."""
        self._offers.clear()

    def first(self, now_s: float) -> OfferReceived | None:
        """The offer of the device whose turn it is; None if nobody waits."""
        while self._offers:
            device, (event, asked_s) = next(iter(self._offers.items()))
            if now_s - asked_s <= FRESH_S:
                return event
            del self._offers[device]
        return None
