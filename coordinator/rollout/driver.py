"""Drives a rollout over the broker: offers the release, follows what devices say, and gives signed orders.

Whatever it sends follows from the state on disk, so a driver that is killed goes on where it was.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.fleet import inbox
from sparsyedge.coordinator.fleet.blob_store import BlobStore
from sparsyedge.coordinator.rollout.plan import Event, Giving, Halt, Return, Rollout, Seen, Tick, advance
from sparsyedge.coordinator.rollout.rollout_file import RolloutFile
from sparsyedge.edge.errors import LinkError, SecurityError
from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.protocol.channel import Channel, Connected, Received
from sparsyedge.edge.protocol.chunks import CLEARED, cut
from sparsyedge.edge.protocol.messages import encode
from sparsyedge.edge.protocol.releases import Order, Release, WheelSet
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.release_seal import seal_order, seal_release

__all__ = ["Driver"]

log = logging.getLogger(__name__)

POLL_S = 0.25
TICK_S = 1.0
SETTLE_S = 3.0
"""How long to collect what devices have said before anything is decided."""
DAY_S = 86_400.0
SIGN_AGAIN_S = DAY_S


class Driver:
    """One rollout; `run` blocks until it is done, halted or returned. The channel must be open."""

    def __init__(
        self,
        authority: Authority,
        file: RolloutFile,
        rollout: Rollout,
        link: Channel,
        *,
        expires_s: float,
        say: Callable[[str], None],
        store: BlobStore | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        """With `store`, devices find the files on a web server too."""
        try:
            self._key = authority.private_signing_key()
        except OSError as error:
            raise SecurityError(
                f"{authority.folder / 'signing.key'} cannot be read ({error.strerror}); releases and orders are signed "
                f"with it, so a rollout runs where it is"
            ) from error
        self._file = file
        self._rollout = rollout
        self._link = link
        self._expires_s = expires_s
        self._say = say
        self._store = store
        self._is_served = False
        """Whether the web server has all files."""
        self._settle_s = settle_s
        self._topics = Topics(authority.settings.fleet)
        self._sets: tuple[WheelSet, ...] = file.read_sets()
        with authority.ledger() as ledger:
            self._revoked = frozenset(ledger.denied())
        self._signed_s = 0.0
        self._stages: dict[str, str] = {}
        self._stopped = False
        self._first: Event | None = None
        """What happens before anything else."""
        self._up = False
        self._settled_s = math.inf
        """From when on everything has been heard that the broker retains; never before the link is up."""

    def stop(self) -> None:
        """Make `run` return soon, with everything in place for the next driver."""
        self._stopped = True

    def run(self, first: Event | None = None) -> Rollout:
        """Drive the rollout to its end, or until stopped; `first` happens once devices have been heard."""
        self._link.subscribe(self._topics.status("+"))
        self._first = first
        ticked_s = 0.0
        while not self._stopped and (self._first is not None or self._rollout.state in ("running", "returning")):
            event = self._link.receive(POLL_S)
            self._take(event)
            if self._file_request():
                continue
            now_s = time.monotonic()
            # Decide nothing before all has been heard that was waiting.
            if event is None and now_s > self._settled_s and now_s - ticked_s > TICK_S:
                ticked_s = now_s
                first, self._first = self._first, None
                self._feed(first or Tick())
                if self._signed_s and now_s - self._signed_s > SIGN_AGAIN_S:
                    self._publish_release()
        if not self._stopped:
            self._withdraw()
        return self._rollout

    def _file_request(self) -> bool:
        match self._file.take_request():
            case "halt":
                self._feed(Halt())
            case "return":
                self._feed(Return())
            case None:
                return False
        return True

    # ---- in ----------------------------------------------------------------------------------------------------------

    def _take(self, event: Connected | Received | None) -> None:
        if isinstance(event, Connected):
            self._up = True
            self._publish_all()
            # Publishing takes long; statuses wait in the inbox meanwhile.
            self._settled_s = time.monotonic() + self._settle_s
        elif isinstance(event, Received):
            message = inbox.read(self._topics, event)
            if isinstance(message, inbox.StatusChanged) and message.device not in self._revoked:
                self._feed(Seen(message.device, message.status))

    def _feed(self, event: Event) -> None:
        before = self._rollout
        self._rollout, given = advance(before, event, time.time())
        if self._rollout == before:
            return
        self._file.write(self._rollout)
        crash_point("rollout-written")
        for each in given:
            self._give(each)
        crash_point("orders-given")
        self._tell(before)

    def _tell(self, before: Rollout) -> None:
        rollout = self._rollout
        if rollout.wave != before.wave:
            chosen = ", ".join(sorted(name for name, each in rollout.devices.items() if each.wave == rollout.wave))
            self._say(f"{'canaries' if rollout.wave == 0 else f'wave {rollout.wave}'}: {chosen}")
        for name, each in rollout.devices.items():
            if each.wave is not None and self._stages.get(name) != each.stage:
                self._stages[name] = each.stage
                self._say(f"{name}: {each.stage}{f': {each.reason}' if each.reason else ''}")

    # ---- out ---------------------------------------------------------------------------------------------------------

    def _publish_all(self) -> None:
        """Say everything that the broker should retain: after a restart it has forgotten all of it."""
        if self._rollout.state == "running" and self._first is None:
            self._offer_files()
            self._publish_release()
        for name, each in self._rollout.devices.items():
            if each.action is not None and (each.is_at_work or each.action in ("keep", "return")):
                self._give(Giving(name, each.action))

    def _publish_release(self) -> None:
        rollout, now_s = self._rollout, time.time()
        serial = max(rollout.last_serial + 1, int(now_s))
        self._rollout = msgspec.structs.replace(rollout, last_serial=serial)
        self._file.write(self._rollout)
        release = Release(
            fleet=rollout.fleet,
            version=serial,
            software=rollout.software,
            issued_unix_s=now_s,
            expires_unix_s=now_s + self._expires_s,
            sets=self._sets,
            blobs=self._store.url if self._store is not None and self._is_served else UNSET,
        )
        self._signed_s = time.monotonic()
        sealed = seal_release(release, self._key, chunk_bytes=self._link.chunk_bytes)
        self._publish(self._topics.release, encode(sealed))

    def _give(self, giving: Giving) -> None:
        each = self._rollout.devices[giving.device]
        order = Order(
            fleet=self._rollout.fleet,
            device=giving.device,
            serial=each.serial,
            action=giving.action,
            bundle=self._rollout.bundle,
            issued_unix_s=time.time(),
        )
        self._publish(self._topics.order(giving.device), encode(seal_order(order, self._key)))

    def _offer_files(self) -> None:
        """Put the files on the web server, if there is one, and on the broker unless it is told to have none."""
        blobs = {file.sha256: file.blob(self._link.chunk_bytes) for wheels in self._sets for file in wheels.files}
        if self._store is not None:
            for sha256, blob in blobs.items():
                self._store.offer(blob, (self._file.files / sha256).read_bytes)
            self._is_served = self._store.flush()
        if self._store is None or self._store.has_fallback:
            for sha256, blob in blobs.items():
                for index, chunk in cut((self._file.files / sha256).read_bytes(), blob):
                    self._publish(self._topics.chunk(sha256, index), chunk)

    def _withdraw(self) -> None:
        """Free the broker's memory and the web server's. Orders stay: a device that comes back late reads its own."""
        if self._store is not None:
            self._store.keep_only(set())
        for wheels in self._sets:
            for file in wheels.files:
                for index in range(file.blob(self._link.chunk_bytes).chunks):
                    self._publish(self._topics.chunk(file.sha256, index), CLEARED)
        self._publish(self._topics.release, b"")

    def _publish(self, topic: str, payload: bytes) -> None:
        if not self._up:
            return
        try:
            self._link.publish(topic, payload, retain=True)
        except LinkError as error:
            log.warning("%s; the rest is said once the broker is back", error)
            self._up = False
