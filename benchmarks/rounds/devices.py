"""Devices that do everything but train, many in one thread: they join, wait for a round, offer, upload and report.

Each has a connection, a client id, a last will and subscriptions of its own, and answers as `edge/device/courier.py`
does, with the same waits. Only what they would compute is shared: a process reads each task and makes each update once.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Final, Protocol

import msgspec

from sparsyedge.benchmarks.rounds.connection import Connection, Traffic
from sparsyedge.benchmarks.rounds.variants import Update
from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.device.courier import OFFER_AGAIN_S, offline_status, wait_s
from sparsyedge.edge.errors import FrameError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import (
    Accepted,
    DeviceStatus,
    Grant,
    Offer,
    Refused,
    Report,
    RoundTask,
    Wait,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["SAMPLES", "Host", "LightDevice", "Observed", "Tasks"]

SAMPLES: Final = 100
REMEMBERED_TASKS: Final = 8


class Tasks:
    """Reads tasks: all devices of a process get the same bytes, which list the whole cohort."""

    def __init__(self) -> None:
        self.bytes = 0
        """The size of the latest task."""
        self._read: list[tuple[bytes, RoundTask]] = []

    def read(self, payload: memoryview) -> RoundTask | None:
        """The task; None if it was cleared."""
        if not payload:
            return None
        for content, task in self._read:
            if content == payload:
                return task
        content = bytes(payload)
        self.bytes = len(content)
        task = decode(content, RoundTask)
        self._read = [(content, task), *self._read[: REMEMBERED_TASKS - 1]]
        return task


class Observed(msgspec.Struct, frozen=True, array_like=True):
    """What one device observed of a round."""

    device: str
    seconds: float | None
    """From its first offer to the confirmation that its update is recorded."""
    answered_again: int
    offers: int
    problem: str


class Host(Protocol):
    """The process that a device shares with others."""

    round_topic: bytes

    def has_task(self, device: LightDevice, task: RoundTask) -> None:
        """A device has received this task, perhaps again."""

    def took_chunk(self, topic: bytes, payload: memoryview) -> None:
        """A device has received a chunk of the round's model."""

    def was_accepted(self) -> None:
        """A device was told that its update is recorded."""

    def has_finished(self) -> None:
        """A device has nothing left to do in this round."""


class LightDevice:
    """One device of the benchmark."""

    def __init__(
        self, name: str, number: int, *, port: int, topics: Topics, traffic: Traffic, tasks: Tasks, host: Host
    ) -> None:
        self.name = name
        self.number = number
        self._host = host
        self._tasks = tasks
        self._boot_id = uuid.uuid4().hex
        self._topics = topics
        self._reply_topic = topics.reply(name).encode()
        self._offer_topic = topics.offer(name).encode()
        self.connection = Connection(
            self,
            port,
            traffic,
            identity=f"{topics.fleet}-{name}",
            patterns=(topics.reply(name), topics.round),
            will=(topics.status(name), offline_status(self._boot_id)),
        )
        self.task: RoundTask | None = None
        self._update: Update | None = None
        self._offer = b""
        self._report = b""
        self._is_sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._started_s = 0.0
        self._offers = 0
        self._seconds: float | None = None
        self._answered_again = 0
        self._problem = ""

    # ---- what the connection reports ---------------------------------------------------------------------------------

    def connected(self) -> None:
        """Tell the coordinator that this device is here."""
        status = DeviceStatus(
            state="online", boot_id=self._boot_id, samples=SAMPLES, software="sparsyedge bench", speaks=OURS
        )
        self.connection.publish(self._topics.status(self.name).encode(), encode(status), retain=True)

    def received(self, topic: bytes, payload: memoryview) -> None:
        """Handle a reply, a task, or a chunk that this device fetches for its process."""
        if topic == self._reply_topic:
            self._take_reply(payload)
        elif topic == self._host.round_topic:
            self.task = self._tasks.read(payload)
            if self.task is not None:
                self._host.has_task(self, self.task)
        else:
            self._host.took_chunk(topic, payload)

    def sent(self) -> None:
        """After the last chunk, ask at once whether all have arrived."""
        if self._is_sending:
            self._is_sending = False
            self._say_offer()

    # ---- a round -----------------------------------------------------------------------------------------------------

    def begin(self, task: RoundTask, update: Update) -> None:
        """Offer this update for the round, until it is accepted or refused."""
        report = Report(
            run=task.run,
            round=task.round,
            phases={"train": PhaseCost(0.0, None)},
            energy_source="none",
            energy_kind="none",
            bytes_down=0,
            bytes_up=update.blob.bytes,
            steps=0,
            loss=0.0,
            peak_rss_mb=0.0,
            pid=0,
        )
        offer = Offer(
            run=task.run, round=task.round, base=task.model_id, update=update.blob, samples=SAMPLES, report=report
        )
        self._update, self._offer, self._report = update, encode(offer), encode(report)
        self._seconds, self._answered_again, self._offers, self._problem = None, 0, 0, ""
        self._started_s = time.monotonic()
        self._say_offer()

    def observed(self) -> Observed:
        """What became of the last update."""
        return Observed(self.name, self._seconds, self._answered_again, self._offers, self._problem)

    def leave(self) -> None:
        """End cleanly: say offline, then disconnect."""
        self._disarm()
        self._update = None
        self.connection.publish(self._topics.status(self.name).encode(), offline_status(self._boot_id), retain=True)
        self.connection.close()

    def _say_offer(self) -> None:
        if self._update is not None:
            self._offers += 1
            self.connection.publish(self._offer_topic, self._offer)
            self._arm(OFFER_AGAIN_S * random.uniform(0.5, 1.5))

    def _arm(self, after_s: float) -> None:
        """Offer again later, as a courier does."""
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._say_offer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_reply(self, payload: memoryview) -> None:
        update = self._update
        try:
            reply = decode_reply(bytes(payload))
        except FrameError as error:
            self._problem = str(error)
            return
        if update is None or reply.update != update.blob.sha256 or self.task is None:
            return
        if isinstance(reply, Grant):
            self._send(update, reply)
        elif isinstance(reply, Wait):
            self._arm(wait_s(reply))
        elif isinstance(reply, Refused):
            self._problem = reply.reason
            self._finish()
        elif isinstance(reply, Accepted):
            self._take_acceptance()

    def _send(self, update: Update, grant: Grant) -> None:
        """Send the missing chunks; a grant that arrives meanwhile asks for the same ones."""
        if self._is_sending or not grant.missing:
            return
        self._disarm()
        size = update.blob.chunk_bytes
        indices = [index for start, stop in grant.missing for index in range(start, min(stop, update.blob.chunks))]
        for index in indices:
            # `sent` comes when the queue is empty: before the last chunk it would only mean that the window is large.
            self._is_sending = index == indices[-1]
            topic = self._topics.upload(self.name, update.blob.sha256, index).encode()
            self.connection.publish(topic, update.frame[index * size : (index + 1) * size])

    def _take_acceptance(self) -> None:
        """Send the same update again, as after a lost answer: it must be answered and not counted twice."""
        if self._seconds is None:
            self._seconds = time.monotonic() - self._started_s
            self._host.was_accepted()
            self._say_offer()
            return
        self._answered_again += 1
        self.connection.publish(self._topics.report(self.name).encode(), self._report)
        self._finish()

    def _finish(self) -> None:
        self._disarm()
        self._update = None
        self._host.has_finished()
