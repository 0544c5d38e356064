"""One coordinator per fleet: a retained lease on the broker, which the holder's last will withdraws.

A stale lease (the broker came back with it, the holder did not) must not block a fleet. So a new coordinator asks
first, and a live holder answers at once: it has its own connection and thread, which no evaluation can block. If two
claim at the same moment, the earlier claim wins and the other coordinator gets an error.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from sparsyedge.edge.errors import FrameError, LinkError, RunError
from sparsyedge.edge.protocol.channel import Channel, Connected, Event, Received
from sparsyedge.edge.protocol.messages import Lease, decode, encode
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["FleetLease"]

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""A holder that does not answer within this time counts as dead."""
POLL_S = 0.25

MakeLink = Callable[[str, tuple[str, bytes]], Channel]
"""Makes a link for an identity and a last will; the caller opens it."""


class FleetLease:
    """A claim on a fleet for the duration of a `with` block, which yields `check`.

    The caller must hold the lock of the run directory.
    """

    def __init__(self, make_link: MakeLink, topics: Topics, *, run: str, run_dir: Path) -> None:
        self._topics = topics
        self._own = Lease(
            state="held",
            holder=uuid.uuid4().hex,
            run=run,
            place=f"{socket.gethostname()}:{run_dir.absolute()}",
            since_unix_s=time.time(),
        )
        self._link = make_link(f"{topics.fleet}-lease-{self._own.holder[:12]}", (topics.lease, b""))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="fleet-lease", daemon=True)
        self._lost: Lease | None = None

    def __enter__(self) -> Callable[[], None]:
        self.acquire()
        return self.check

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Claim the fleet; raises RunError if another coordinator leads it."""
        self._link.subscribe(self._topics.lease)
        self._link.open()
        try:
            holder = self._find_holder()
            if holder is not None:
                raise RunError(_refusal(self._topics.fleet, holder))
            self._say("held")
        except BaseException:
            self._link.close()
            raise
        self._thread.start()

    def check(self) -> None:
        """Raise RunError if another coordinator has the older claim."""
        if self._lost is not None:
            raise RunError(_refusal(self._topics.fleet, self._lost))

    def release(self) -> None:
        """Give the fleet back."""
        if not self._thread.ident:
            return
        self._closing.set()
        self._thread.join()
        if self._lost is None:
            self._publish(b"")
        self._link.close()

    def _find_holder(self) -> Lease | None:
        """The lease of a live holder, or None."""
        until_s = time.monotonic() + ANSWER_S
        found: Lease | None = None
        while time.monotonic() < until_s:
            event = self._link.receive(POLL_S)
            if isinstance(event, Connected):
                self._say("asked")
            lease = _read(event)
            if lease is None:
                continue
            if lease.holder == self._own.holder:
                # Our question came back. A retained lease would have come first, so nobody holds the fleet.
                if found is None:
                    return None
            elif lease.state == "held" and lease.place != self._own.place:
                # We hold the lock of our own run directory, so a lease from there belongs to a dead process.
                found = lease
                if lease.answers == self._own.holder:
                    return lease
        if found is not None:
            log.warning("nobody answers for the lease of run %s on fleet %s; taking over", found.run, found.place)
        return None

    def _keep(self) -> None:
        while not self._closing.is_set():
            event = self._link.receive(POLL_S)
            lease = _read(event)
            if isinstance(event, Connected) or (isinstance(event, Received) and lease is None):
                # The second case: another coordinator's last will cleared our lease.
                self._say("held")
            elif lease is not None and lease.holder != self._own.holder:
                self._face(lease)

    def _face(self, other: Lease) -> None:
        if other.state == "asked":
            self._say("held", answers=other.holder)
        elif other.place == self._own.place or _rank(self._own) < _rank(other):
            self._say("held")
        else:
            self._lost = other

    def _say(self, state: Literal["held", "asked"], *, answers: str = "") -> None:
        lease = msgspec.structs.replace(self._own, state=state, answers=answers)
        self._publish(encode(lease), retain=state == "held")

    def _publish(self, payload: bytes, *, retain: bool = True) -> None:
        try:
            self._link.publish(self._topics.lease, payload, retain=retain, timeout_s=ANSWER_S)
        except LinkError as error:
            log.warning("lease not published: %s; the next connect says it again", error)


def _read(event: Event | None) -> Lease | None:
    """Decode the lease in a message; None if it is withdrawn or unreadable."""
    if not isinstance(event, Received) or not event.payload:
        return None
    try:
        return decode(event.payload, Lease)
    except FrameError as error:
        log.warning("ignored a message on %s: %s", event.topic, error)
        return None


def _rank(lease: Lease) -> tuple[float, str]:
    return lease.since_unix_s, lease.holder


def _refusal(fleet: str, holder: Lease) -> str:
    return (
        f"fleet {fleet} is already led by run {holder.run} ({holder.place}); end that run with "
        f"`sparsyedge coordinator stop`, or give this one another `fleet`"
    )
