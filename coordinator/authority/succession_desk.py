"""Tells devices of the fleet's next authority while it is rotated, and hears who follows; see rotation.py."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.followers import Followers
from sparsyedge.coordinator.authority.ledger import Ledger
from sparsyedge.coordinator.authority.rotation import Rotation, read_rotation, settle
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.channel import Channel, Received
from sparsyedge.edge.protocol.messages import RunCertificate
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.run_seal import check_certificate

__all__ = ["SuccessionDesk"]

GRACE_S = 10.0
"""How long a run under way has for taking the new key; it looks every second."""


class _Task(msgspec.Struct, frozen=True):
    """The part of a RoundTask that matters here."""

    certificate: RunCertificate


_TASK_DECODER: msgspec.json.Decoder[_Task] = msgspec.json.Decoder(_Task)


class SuccessionDesk:
    """The part of a rotation that needs the broker; works over the connection of whoever answers newcomers."""

    def __init__(self, authority: Authority, link: Channel, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._authority = authority
        self._link = link
        self._topics = Topics(authority.settings.fleet)
        self._followers = Followers(authority)
        self._clock = clock
        self._state: Rotation | None = None
        """How far the rotation was when we looked last."""
        self._told = 0
        """The number of the statement that the broker has from us."""
        self._tell_by_s: float | None = None
        """When to tell the last statement even if no run has taken the new key; None if we do not wait."""

    def tell(self) -> None:
        """Tell devices what the present statement is; call it after every connect, since brokers forget."""
        told, self._told = self._told, 0
        self.look()
        if self._state is not None and self._state.number == told:
            self._publish(self._state)

    def look(self) -> None:
        """See whether the operator has gone on with the rotation; call it every second or so."""
        state, before = read_rotation(self._authority.folder), self._state
        if state is not None and state.stage == "switching":
            # Waits for whoever is at it; if that one was killed, we go on with it.
            state = settle(self._authority)
        if state is None:
            return
        self._state = state
        if state.is_open and (before is None or not before.is_open):
            self._link.subscribe(self._topics.status("+"))
        elif before is not None and before.is_open and not state.is_open:
            self._link.unsubscribe(self._topics.status("+"))
        if state.number == self._told:
            return
        if state.is_open:
            self._publish(state)
        elif self._tell_by_s is None:
            # A device that hears it drops a task under the old key, so a run under way announces its own anew first.
            self._tell_by_s = self._clock() + GRACE_S
            self._link.subscribe(self._topics.round)
        elif self._clock() >= self._tell_by_s:
            self._publish(state)

    def _publish(self, state: Rotation) -> None:
        if self._tell_by_s is not None:
            self._link.unsubscribe(self._topics.round)
        self._told, self._tell_by_s = state.number, None
        self._link.publish(self._topics.authority, state.sealed.encode(), retain=True)

    def take_task(self, payload: bytes) -> None:
        """See whether the run under way has taken the new key; then the old one may go."""
        state = self._state
        if state is None or self._tell_by_s is None:
            return
        try:
            certificate = _TASK_DECODER.decode(payload).certificate
            check_certificate(
                certificate, fleet=self._authority.settings.fleet, signing_key=self._authority.signing_key
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, SecurityError):
            return
        self._publish(state)

    def take(self, ledger: Ledger, device: str, message: Received) -> None:
        """Hear a device's status."""
        state = self._state
        if state is None or not state.is_open:
            return
        self._followers.take(
            ledger,
            device,
            message.payload,
            number=state.number,
            by_next=state.stage == "following",
            is_live=not message.retained,
        )

    def flush(self, ledger: Ledger) -> None:
        """Write down who was heard."""
        self._followers.flush(ledger)
