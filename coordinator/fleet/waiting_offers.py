"""Offers of devices that wait for a place to upload, so that the next one can be called as soon as a place is free.

A waiting device repeats its offer now and then, in case a message was lost. Without this, a place would stay empty
until somebody happens to ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsyedge.coordinator.rounds.events import OfferReceived

__all__ = ["WaitingOffers"]


@dataclass
class _Waiting:
    offer: OfferReceived
    until_s: float
    """After so much silence the device is gone."""
    told: bool = False
    """Whether this offer was answered: the device knows that it waits."""


class WaitingOffers:
    """The last offer of each waiting device, the longest wait first: some kilobytes per device at most."""

    def __init__(self) -> None:
        self._offers: dict[str, _Waiting] = {}

    def __contains__(self, device: str) -> bool:
        return device in self._offers

    def put(self, event: OfferReceived, *, until_s: float) -> None:
        """Note that a device asked and got no place; it keeps its turn, and counts as waiting until then."""
        self._offers[event.device] = _Waiting(event, until_s)

    def tell(self, device: str) -> bool:
        """Whether the device must still be told that it waits: once for each time that it asks."""
        waiting = self._offers.get(device)
        if waiting is None or waiting.told:
            return False
        waiting.told = True
        return True

    def remove(self, device: str) -> None:
        """Forget a device that waits no more."""
        self._offers.pop(device, None)

    def clear(self) -> None:
        """Forget everybody: the round is over."""
        self._offers.clear()

    def first(self, now_s: float) -> OfferReceived | None:
        """The offer of the device whose turn it is; None if nobody waits."""
        while self._offers:
            device, waiting = next(iter(self._offers.items()))
            if now_s <= waiting.until_s:
                return waiting.offer
            del self._offers[device]
        return None
