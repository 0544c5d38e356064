"""Carries tasks and blobs from the coordinator to a device, and updates back. It decides nothing.

Everything arrives through one inbox. The courier reads it while it waits for a blob or for the answer to an offer, and
the agent drains it between training steps, so a device always notices when the round has moved on.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from sparsyedge.edge.compatibility import OURS, Speaks, read_demand, which_upgrade
from sparsyedge.edge.device.fitness import Unfit
from sparsyedge.edge.errors import FrameError, LinkError
from sparsyedge.edge.protocol.channel import Channel, Connected, Health, Received
from sparsyedge.edge.protocol.chunks import Assembly, cut, is_cleared, parse_index
from sparsyedge.edge.protocol.device_settings import DeviceSettings
from sparsyedge.edge.protocol.messages import (
    Accepted,
    Blob,
    DeviceStatus,
    Follows,
    Grant,
    HeldModel,
    Offer,
    Refused,
    Reply,
    Report,
    RoundTask,
    UpgradeStatus,
    Wait,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.enrolment_messages import RenewalRequest
from sparsyedge.edge.security.trust import Trust
from sparsyedge.edge.text import one_line

__all__ = ["Abandoned", "Courier", "Member", "last_word", "offline_status", "wait_s"]

log = logging.getLogger(__name__)

TICK_S = 0.5
"""How often a wait checks whether to give up."""
STALL_S = 5.0
DOWNLOAD_TIMEOUT_S = 600.0
OFFER_AGAIN_S = 3.0
WAIT_S = 10.0
"""How long a device waits before it offers again if the coordinator told it to wait, and not for how long."""
SOON_S = 1.0
"""After a coordinator comes back, devices spread their offers over this time."""
LAST_WORD_S = 2.0
"""How long to wait for the answer to an offer once the round is over: the end of the round may arrive first."""
STATUS_TIMEOUT_S = 5.0


class Abandoned(Exception):
    """The result of this wait is no longer needed."""


@dataclass(frozen=True)
class Member:
    """A device's identity in its fleet."""

    device: str
    topics: Topics
    boot_id: str
    software: str
    samples: int
    speaks: Speaks = OURS
    settings: DeviceSettings | UnsetType = UNSET


def offline_status(boot_id: str) -> bytes:
    """The status of a device that has left: its last will, and its own word when it goes."""
    return encode(DeviceStatus(state="offline", boot_id=boot_id))


def wait_s(reply: Wait) -> float:
    """How long to wait until this device asks again; random, so that a fleet does not ask in step."""
    again_s = WAIT_S if reply.again_s is UNSET else reply.again_s
    return again_s * random.uniform(0.5, 1.5)


def last_word(member: Member, reason: str) -> bytes:
    """The status of a device that cannot start at all."""
    return encode(
        DeviceStatus(state="offline", boot_id=member.boot_id, software=member.software, unfit=one_line(reason))
    )


class Courier:
    """A device's end of the protocol, over an open channel; counts the bytes of the chunks that it carries."""

    def __init__(self, link: Channel, member: Member, *, trust: Trust | None = None) -> None:
        """With `trust`, ignores tasks that fail its check."""
        self.task: RoundTask | None = None
        """The coordinator's latest task."""
        self.unreadable = ""
        """Why the latest task could not be read; empty if it could."""
        self.bytes_down = 0
        self.bytes_up = 0
        self.holds: HeldModel | None = None
        """The model that this device predicts with; the next status tells the coordinator."""
        self.follows: Follows | None = None
        """That this device is ready for the fleet's next authority; the next status tells the coordinator."""
        self.on_identity: Callable[[bytes], None] | None = None
        """Called with the answer to a renewal."""
        self._link = link
        self._member = member
        self._topics = member.topics
        self._trust = trust
        self._unfit: Unfit | None = None
        self._upgrade: UpgradeStatus | UnsetType = UNSET
        self._classes: tuple[int, ...] | UnsetType = UNSET
        self._watched: dict[str, Callable[[bytes], None]] = {}
        self._has_greeted = False
        """Whether the channel was connected once."""
        self._trouble = ""
        """Why the last status was not published; logged once."""
        self._reply: Reply | None = None
        self._assembly: Assembly | None = None
        self._progress_s = 0.0
        self._announced = 0
        """How many tasks have arrived, repeats included."""
        self._asked_s: float | None = None
        """Since when the coordinator has left our offer without an answer."""

    @property
    def device(self) -> str:
        """The device's id."""
        return self._member.device

    @property
    def unanswered_s(self) -> float:
        """How long this device has been offering an update without getting a place to upload it."""
        return 0.0 if self._asked_s is None else time.monotonic() - self._asked_s

    @property
    def unfit_reason(self) -> str:
        """Why this device does not train; empty if it does."""
        return self._unfit.reason if self._unfit else ""

    def health(self) -> Health:
        """How the connection to the broker is doing."""
        return self._link.health()

    # ---- status and task ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Subscribe to the task and to replies; the status follows once the channel is connected."""
        self._link.subscribe(self._topics.reply(self._member.device))
        self._link.subscribe(self._topics.round)

    def refresh(self) -> None:
        """Ask for the task again and repeat the status: any message may have been lost."""
        self._link.subscribe(self._topics.round)
        for topic in self._watched:
            self._link.subscribe(topic)
        self.say_hello()

    def say_samples(self, samples: int) -> None:
        """Tell the coordinator how many samples this device has, if that has changed."""
        if samples != self._member.samples:
            self._member = replace(self._member, samples=samples)
            self.say_hello()

    def say_classes(self, shares: tuple[int, ...] | UnsetType) -> None:
        """Tell the coordinator which classes this device has, if that has changed; UNSET tells nothing any more."""
        before, self._classes = self._classes, shares
        if shares != before:
            self.say_hello()

    def watch(self, topic: str, take: Callable[[bytes], None]) -> None:
        """Subscribe to one more topic; `take` gets every payload, some of them more than once."""
        self._watched[topic] = take
        self._link.subscribe(topic)

    def unwatch(self, topic: str) -> None:
        """End a subscription of `watch`."""
        if self._watched.pop(topic, None) is not None:
            self._link.unsubscribe(topic)

    def ask_again(self, topic: str) -> None:
        """Have the broker repeat what it retains on a watched topic."""
        self._link.subscribe(topic)

    def say_upgrade(self, status: UpgradeStatus) -> None:
        """Tell the coordinator how far this device is with a release."""
        before, self._upgrade = self._upgrade, status
        if status != before and self._has_greeted:
            self.say_hello()

    def say_fitness(self, unfit: Unfit | None) -> None:
        """Tell the coordinator why this device does not train; None means it trains again.

        If only a figure in the reason changes, such as a temperature, it goes out with the next refresh.
        """
        before, self._unfit = self._unfit, unfit
        if _subject(before) == _subject(unfit):
            return
        if unfit is not None:
            log.warning("not training: %s", unfit.reason)
        else:
            log.info("ready to train again")
        self.say_hello()

    def forget_old_task(self) -> None:
        """Drop the task and ask for it again unless a key that is trusted now vouches for it."""
        if self.task is not None and self._trust is not None and not self._trust.vouches_for(self.task.certificate):
            self.task = None
            self._link.subscribe(self._topics.round)

    def ask_renewal(self, request: RenewalRequest) -> None:
        """Ask for a certificate that lasts longer; the answer goes to `on_identity`."""
        device = self._member.device
        self._link.subscribe(self._topics.renewal_reply(device))
        self._link.publish(self._topics.renewal_request(device), encode(request))

    def leave(self) -> None:
        """Tell the coordinator that this device is leaving."""
        self._publish_status(offline_status(self._member.boot_id))

    def report(self, report: Report) -> None:
        """Tell the coordinator what a round cost."""
        self._link.publish(self._topics.report(self._member.device), encode(report))

    def _publish_status(self, payload: bytes) -> None:
        topic = self._topics.status(self._member.device)
        try:
            self._link.publish(topic, payload, retain=True, timeout_s=STATUS_TIMEOUT_S)
        except LinkError as error:
            # The next connect repeats it; if the device is gone, its last will reports that.
            if str(error) != self._trouble:
                log.warning("status not published: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""

    # ---- the inbox ---------------------------------------------------------------------------------------------------

    def listen(self, timeout_s: float = TICK_S) -> bool:
        """Handle one event if one comes in time; returns whether it did."""
        event = self._link.receive(timeout_s)
        if isinstance(event, Received):
            try:
                self._dispatch(event)
            except FrameError as error:
                log.warning("ignored a message on %s: %s", event.topic, error)
        elif isinstance(event, Connected):
            self.say_hello()
        return event is not None

    def drain(self) -> None:
        """Handle everything that has arrived, without waiting."""
        while self.listen(0):
            pass

    def say_hello(self) -> None:
        """Tell the coordinator how this device is."""
        self._has_greeted = True
        member = self._member
        status = DeviceStatus(
            state="online",
            boot_id=member.boot_id,
            samples=member.samples,
            software=member.software,
            unfit=one_line(self._unfit.reason) if self._unfit else "",
            unfit_round=self._unfit.round if self._unfit else 0,
            alarm=one_line(self._trust.alarm) if self._trust else "",
            speaks=member.speaks,
            settings=member.settings,
            holds=self.holds or UNSET,
            upgrade=self._upgrade,
            classes=self._classes,
            follows=self.follows or UNSET,
        )
        self._publish_status(encode(status))

    def _dispatch(self, message: Received) -> None:
        if (take := self._watched.get(message.topic)) is not None:
            take(message.payload)
            return
        match self._topics.parse(message.topic):
            case ("round",):
                self._read_task(message.payload)
            case ("dev", _, "reply"):
                self._reply = decode_reply(message.payload)
            case ("dev", _, "identity") if self.on_identity is not None:
                self.on_identity(message.payload)
            case ("blob", sha256, index) if self._assembly and self._assembly.blob.sha256 == sha256:
                self._put_chunk(self._assembly, index, message.payload)
            case _:
                log.debug("nothing to do about a message on %s", message.topic)

    def _read_task(self, payload: bytes) -> None:
        if self._trust is not None and (not payload or not self._trust.believes(payload)):
            # On start, a coordinator clears the topic with an empty message, which cannot carry a signature.
            return
        try:
            if payload and (reason := self._which_upgrade(payload)):
                # Every refresh repeats the task; `say_fitness` logs this reason once.
                self.unreadable = reason
                return
            self.task = decode(payload, RoundTask) if payload else None
        except FrameError as error:
            self.unreadable = f"cannot read the coordinator's task: {error}; do both run the same version?"
            raise
        self.unreadable = ""
        self._announced += 1

    def _which_upgrade(self, payload: bytes) -> str:
        """Which side must be upgraded for this device to read the task; empty if it already can."""
        member = self._member
        return which_upgrade(member.device, member.software, member.speaks, read_demand(payload))

    def _put_chunk(self, assembly: Assembly, index: str, payload: bytes) -> None:
        if is_cleared(assembly.blob, payload):
            return
        number = parse_index(index)
        self.bytes_down += len(payload)
        if assembly.put(number, payload):
            self._progress_s = time.monotonic()

    # ---- down --------------------------------------------------------------------------------------------------------

    def fetch(self, blob: Blob, *, wanted: Callable[[], bool]) -> bytes:
        """Fetch a blob from the coordinator's retained chunks and check its hash; asks again if chunks stop coming.

        Raises Abandoned once `wanted` says no, LinkError if it takes too long, and FrameError if the chunks do not
        match the announced blob.
        """
        pattern = self._topics.chunk(blob.sha256, "+")
        assembly = self._assembly = Assembly(blob)
        started_s = self._progress_s = time.monotonic()
        self._link.subscribe(pattern)
        try:
            while not assembly.complete:
                self.listen()
                _require(wanted)
                if time.monotonic() - started_s > DOWNLOAD_TIMEOUT_S:
                    raise LinkError(
                        f"blob {blob.sha256[:12]} is not complete after {DOWNLOAD_TIMEOUT_S:g} s; "
                        f"check that the coordinator is running"
                    )
                if time.monotonic() - self._progress_s > STALL_S:
                    log.info("blob %s lacks chunks %s; asking again", blob.sha256[:12], assembly.missing(3))
                    self._link.subscribe(pattern)
                    self._progress_s = time.monotonic()
        finally:
            self._link.unsubscribe(pattern)
            self._assembly = None
        return assembly.content()

    # ---- up ----------------------------------------------------------------------------------------------------------

    def deliver(self, offer: Offer, frame: bytes, *, wanted: Callable[[], bool]) -> Accepted | Refused:
        """Repeat the offer and send the requested chunks until the coordinator accepts or refuses; raises Abandoned."""
        self._asked_s = time.monotonic()
        try:
            return self._deliver(offer, frame, wanted)
        finally:
            self._asked_s = None

    def _deliver(self, offer: Offer, frame: bytes, wanted: Callable[[], bool]) -> Accepted | Refused:
        offer_s = leave_s = 0.0
        announced = self._announced
        while True:
            now_s = time.monotonic()
            if wanted():
                leave_s = now_s + LAST_WORD_S
            elif now_s > leave_s:
                raise Abandoned
            if now_s >= offer_s:
                self._link.publish(self._topics.offer(self._member.device), encode(offer))
                # A busy coordinator does not answer; random waits keep the fleet from asking in step.
                offer_s = now_s + OFFER_AGAIN_S * random.uniform(0.5, 1.5)
            self.listen(min(TICK_S, max(0.0, offer_s - time.monotonic())))
            if announced != self._announced:
                # A restarted coordinator announces its round again and has forgotten our offer.
                announced = self._announced
                offer_s = min(offer_s, now_s + random.uniform(0.0, SOON_S))
            reply = self._take_reply(offer.run, offer.round, offer.update.sha256)
            if isinstance(reply, Grant):
                self._asked_s = None
                self._send_chunks(offer, frame, reply, wanted)
                if reply.missing:
                    offer_s = 0.0
            elif isinstance(reply, Wait):
                offer_s = time.monotonic() + wait_s(reply)
                if reply.again_s is UNSET:
                    log.warning("round %d: the coordinator makes this device wait: %s", offer.round, reply.reason)
            elif reply is not None:
                return reply

    def confirm(self, report: Report, *, wanted: Callable[[], bool]) -> None:
        """Repeat a report on an evaluation round until the coordinator has it; raises Abandoned."""
        payload = encode(report)
        name = hashlib.sha256(payload).hexdigest()
        while True:
            _require(wanted)
            self._link.publish(self._topics.report(self._member.device), payload)
            again_s = time.monotonic() + OFFER_AGAIN_S * random.uniform(0.5, 1.5)
            while (left_s := again_s - time.monotonic()) > 0:
                self.listen(min(TICK_S, left_s))
                if isinstance(self._take_reply(report.run, report.round, name), Accepted):
                    return
                _require(wanted)

    def _take_reply(self, run: str, round_number: int, name: str) -> Reply | None:
        """The reply to what has this hash, if it has arrived; drops replies to anything else."""
        reply, self._reply = self._reply, None
        return reply if reply and (reply.run, reply.round, reply.update) == (run, round_number, name) else None

    def _send_chunks(self, offer: Offer, frame: bytes, grant: Grant, wanted: Callable[[], bool]) -> None:
        for index, chunk in cut(frame, offer.update, grant.missing):
            _require(wanted)
            self._link.publish(self._topics.upload(self._member.device, offer.update.sha256, index), chunk)
            self.bytes_up += len(chunk)
            self.drain()
        # A grant that arrived in the meantime asks for chunks we have just sent.
        if isinstance(self._reply, Grant):
            self._reply = None


def _subject(unfit: Unfit | None) -> tuple[str, int] | None:
    """The reason without its figures, and the round."""
    return None if unfit is None else (re.sub(r"[\d.]+", "", unfit.reason), unfit.round)


def _require(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise Abandoned
