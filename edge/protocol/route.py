"""The brokers of a link: where to connect next, and how the link stands with each. No I/O but what `Admission` does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sparsyedge.edge.protocol.admission import Admission
from sparsyedge.edge.protocol.tls import Tls

__all__ = ["Address", "Route", "search_delay_s"]

log = logging.getLogger(__name__)

LAP_PAUSE_S: Final = 4.0
"""The pause after each lap on which no broker answered."""


FIRST_SEARCH_S: Final = 5.0
LAST_SEARCH_S: Final = 60.0


def search_delay_s(tries: int) -> float:
    """How long to wait before looking for brokers again; it doubles with each try."""
    return min(LAST_SEARCH_S, FIRST_SEARCH_S * 2.0 ** min(tries, 10))


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Route:
    """The brokers in the order of the config. The owner moves along it while opening, later the network thread."""

    def __init__(
        self,
        addresses: Sequence[Address],
        tls: Tls | None,
        *,
        find: Callable[[], Sequence[Address]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If nobody answers at any of the addresses, `find` may know others; it may block for some seconds."""
        self.stops = tuple(Admission(address.host, address.port, tls) for address in addresses)
        self._tls = tls
        self._find = find
        self._named = tuple(addresses)
        self._looks = 0
        """Looks for other brokers since one admitted us."""
        self._look_not_before_s = clock()
        self._addresses = tuple(addresses)
        self._clock = clock
        self._index = 0
        self._last_up: Address | None = None
        self._hops = 0
        """Moves since a broker last admitted us."""
        self._not_before_s = [0.0] * len(addresses)
        self._problems: dict[int, str] = {}
        self._closed: set[int] = set()

    @property
    def here(self) -> Admission:
        """How the link stands with the broker that it tries or uses."""
        return self.stops[self._index]

    @property
    def address(self) -> Address:
        """The broker that the link tries or uses."""
        return self._addresses[self._index]

    @property
    def is_single(self) -> bool:
        """Whether there is one broker, and will be no other."""
        return len(self._addresses) == 1 and self._find is None

    # ---- the first connection ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget what earlier attempts to open met."""
        self._hops = 0
        self._problems.clear()
        self._closed.clear()
        for stop in self.stops:
            stop.trouble = None

    @property
    def is_hopeless(self) -> bool:
        """Whether every broker refused us for a reason that waiting does not change."""
        return len(self._closed) == len(self._addresses)

    @property
    def left_of_lap(self) -> int:
        """How many brokers to try before one is tried again."""
        return len(self._addresses) - self._hops % len(self._addresses)

    def note_problem(self, problem: str, *, is_final: bool) -> None:
        """Note why this broker did not let us in, and whether to leave it at that."""
        self._problems[self._index] = problem
        if is_final:
            self._closed.add(self._index)

    def try_next(self) -> bool:
        """Go to the next broker that is worth trying; returns True at the end of a lap, unless others were found."""
        before, problem = self.address, self._problems.get(self._index, "no answer")
        for _ in self._addresses:
            self._index = (self._index + 1) % len(self._addresses)
            if self._index not in self._closed:
                break
        self._hops += 1
        self._tell(before, problem)
        is_lap = self._hops % len(self._addresses) == 0
        return is_lap and not self.look_again()

    def failure(self, identity: str) -> str:
        """Why no broker let us in: each address with its problem, and what to do."""
        if self.is_single:
            problem = self._problems.get(0, "no answer")
            if self.here.trouble:
                return f"cannot connect to the MQTT broker at {self.address}: {problem}"
            return (
                f"cannot connect to the MQTT broker at {self.address} as {identity}: {problem}; "
                f"check that the broker runs there and that host and port in the config are right"
            )
        listed = ", ".join(
            f"{address} ({self._problems.get(index, 'not tried in time')})"
            for index, address in enumerate(self._addresses)
        )
        return (
            f"cannot connect to any MQTT broker as {identity}: {listed}; check that they run there and that `broker` "
            f"in the config is right"
        )

    # ---- later ones --------------------------------------------------------------------------------------------------

    def note_up(self) -> Address | None:
        """Note that this broker admitted us; returns the one before it, if that was another."""
        before, self._last_up, self._hops, self._looks = self._last_up, self.address, 0, 0
        self.here.note_admitted()
        return before if before != self.address else None

    def leave(self) -> float:
        """Go on after a lost connection or a failed attempt; returns the seconds to wait before the next."""
        refused_s = self.here.before_retry()
        if self.is_single:
            return refused_s
        if self._hops > len(self._addresses) and self.look_again():
            return 0.0
        now_s, before = self._clock(), self.address
        self._not_before_s[self._index] = now_s + refused_s
        count = len(self._addresses)
        waits = {
            index % count: max(0.0, self._not_before_s[index % count] - now_s)
            for index in range(self._index + 1, self._index + 1 + count)
        }
        # The next in line, unless it refused us a moment ago: that one has to wait.
        self._index = min(waits, key=lambda index: waits[index])
        self._hops += 1
        self._tell(before, "lost" if self._hops == 1 else "no answer")
        pause_s = LAP_PAUSE_S if self._hops > 1 and self._hops % count == 1 else 0.0
        return max(waits[self._index], pause_s)

    def silence(self, seconds: float) -> str:
        """What to say when no broker can be reached."""
        if self.is_single:
            return f"the MQTT broker at {self.address} took no message for {seconds:g} s: it is unreachable"
        places = ", ".join(map(str, self._addresses))
        return f"none of the MQTT brokers at {places} took a message for {seconds:g} s: they are unreachable"

    # ---- brokers that nobody named -----------------------------------------------------------------------------------

    def look_again(self) -> bool:
        """Look for other brokers, ever more rarely; returns whether there are some, of which the first is tried next.

        Those that were found before and not now are given up.
        """
        if self._find is None or self._clock() < self._look_not_before_s:
            return False
        found = [address for address in self._find() if address not in self._named]
        self._look_not_before_s = self._clock() + search_delay_s(self._looks)
        self._looks += 1
        addresses = (*found, *self._named)
        if not found or set(addresses) == set(self._addresses):
            return False
        log.info("somebody announces the fleet's broker at %s", ", ".join(map(str, found)))
        known = dict(zip(self._addresses, self.stops, strict=True))
        # The owner may read the present stop at any time: there must always be one.
        self._index, self._hops = 0, 0
        self.stops = tuple(known.get(each) or Admission(each.host, each.port, self._tls) for each in addresses)
        self._addresses, self._not_before_s = addresses, [0.0] * len(addresses)
        self._problems.clear()
        self._closed.clear()
        return True

    def _tell(self, before: Address, problem: str) -> None:
        # An outage of hours gets a line per broker, not one per attempt.
        if self.address != before and self._hops <= len(self._addresses):
            log.warning("going from the broker at %s (%s) to the one at %s", before, problem, self.address)
