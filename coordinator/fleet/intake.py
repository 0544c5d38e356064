"""Turns messages into events: each reaches the rounds or counts as a refusal. Bad input never raises."""

from __future__ import annotations

import logging

from msgspec import UNSET

from sparsyedge.coordinator.fleet import inbox
from sparsyedge.coordinator.fleet.activities import Activities
from sparsyedge.coordinator.fleet.device_watch import DeviceWatch
from sparsyedge.coordinator.fleet.evaluation_rounds import EvaluationRounds
from sparsyedge.coordinator.fleet.offer_proofs import UNPROVEN, OfferProofs
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.fleet.refusals import Refusals
from sparsyedge.coordinator.fleet.reports import Reports
from sparsyedge.coordinator.fleet.revoked_devices import BANNED, RevokedDevices
from sparsyedge.coordinator.fleet.round_driver import RoundDriver
from sparsyedge.coordinator.fleet.task_watch import TaskWatch
from sparsyedge.coordinator.fleet.uploads import Uploads
from sparsyedge.coordinator.rounds.events import ChunkReceived, OfferReceived, RefusalKind, UploadComplete
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.protocol.channel import Channel, Received
from sparsyedge.edge.protocol.messages import Catalogue, decode
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["Intake"]

log = logging.getLogger(__name__)


class Intake:
    """Handles every message from the channel."""

    def __init__(
        self,
        topics: Topics,
        *,
        driver: RoundDriver,
        devices: DeviceWatch,
        activities: Activities,
        uploads: Uploads,
        reports: Reports,
        evaluations: EvaluationRounds,
        refusals: Refusals,
        publisher: Publisher,
        revoked: RevokedDevices,
        proofs: OfferProofs,
        task_watch: TaskWatch | None,
    ) -> None:
        self._topics = topics
        self._driver = driver
        self._devices = devices
        self._activities = activities
        self._uploads = uploads
        self._reports = reports
        self._evaluations = evaluations
        self._refusals = refusals
        self._publisher = publisher
        self._revoked = revoked
        self._proofs = proofs
        self._task_watch = task_watch

    def subscribe(self, channel: Channel) -> None:
        """Subscribe to all topics this class handles."""
        for pattern in (self._topics.offer("+"), self._topics.report("+"), self._topics.upload("+", "+", "+")):
            # No access list can stop a device from setting the retain flag here, so we need to see the flag.
            channel.subscribe(pattern, as_published=True)
        for pattern in (self._topics.status("+"), self._topics.catalogue):
            channel.subscribe(pattern)
        # Only the last word of a device matters. So one that speaks too often takes no more room than the others.
        channel.subscribe(self._topics.progress("+"), latest=True)
        if self._task_watch:
            channel.subscribe(self._topics.round)

    def take(self, received: Received) -> None:
        """Handle one message."""
        if received.topic == self._topics.catalogue:
            self._take_over(received)
        elif received.topic == self._topics.round:
            if self._task_watch:
                self._task_watch.note(received.payload, retained=received.retained)
        else:
            self._take_from_device(received)

    def _take_from_device(self, received: Received) -> None:
        message = inbox.read(self._topics, received)
        if message is not None and message.device in self._revoked:
            self._refusals.count(message.device, RefusalKind.REVOKED, BANNED)
            return
        match message:
            case inbox.StatusChanged(device, status):
                self._devices.note(device, status)
            case inbox.Progressed(device, payload):
                if wrong := self._activities.take(device, payload, self._driver.state):
                    self._refusals.count(device, RefusalKind.UNREADABLE, wrong)
            case OfferReceived():
                self._take_offer(message)
            case inbox.Chunk():
                self._put_chunk(message)
            case inbox.Reported(device, report):
                if report.evaluation is UNSET:
                    self._reports.take(device, report)
                else:
                    self._evaluations.take(device, report, received.payload)
            case inbox.Kept(device, topic):
                self._publisher.forget(topic)
                reason = "had the broker keep a message that only passes through"
                self._refusals.count(device, RefusalKind.KEPT, reason)
            case inbox.Garbage(device, reason):
                self._refusals.count(device, RefusalKind.UNREADABLE, reason)
            case None:
                log.debug("nothing to do about a message on %s", received.topic)

    def _take_offer(self, event: OfferReceived) -> None:
        """Pass on an offer the device signed; count a forged one without answering it.

        The answer would reach the real device. If that made the same update, it would drop it.
        """
        if self._proofs.holds(event.device, event.offer):
            self._driver.feed(event)
        else:
            self._refusals.count(event.device, RefusalKind.FORGED, UNPROVEN, round_number=event.offer.round)

    def _put_chunk(self, chunk: inbox.Chunk) -> None:
        upload = self._uploads.get(chunk.device, chunk.update)
        if upload is None:  # the broker repeated it after the update was complete, or we never granted it
            return
        try:
            new = upload.assembly.put(chunk.index, chunk.content)
        except FrameError as error:
            self._refusals.count(chunk.device, RefusalKind.UNREADABLE, str(error))
            return
        if upload.assembly.complete:
            self._driver.feed(UploadComplete(chunk.device, chunk.update))
        elif new:
            self._driver.feed(ChunkReceived(chunk.device))

    def _take_over(self, received: Received) -> None:
        """Withdraw blobs another coordinator left on the broker. A catalogue that is not retained is our own."""
        if not received.retained or not received.payload:
            return
        try:
            self._publisher.take_over(decode(received.payload, Catalogue))
        except FrameError as error:
            log.warning("what an earlier coordinator has left on the broker is unknown: %s", error)
