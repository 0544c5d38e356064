"""The coordinator's channel of `--link memory`: a broker without a network, which also schedules the devices' turns.

The coordinator works as over MQTT: it retains chunks and tasks here, and devices offer and upload through here. The hub
adds turns and time: a deadline passes only once no device can still answer, never because this machine is slow. So a
run's model depends on its seed and not on the number of workers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import UNSET, UnsetType

from sparsyedge.benchmarks.simulate.engine import Lost, Worker, Workers
from sparsyedge.benchmarks.simulate.pipe import Carry, Publish, Subscribe, Unsubscribe, matches
from sparsyedge.benchmarks.simulate.simulated_device import BOOT_ID, SOFTWARE
from sparsyedge.edge.compatibility import OURS
from sparsyedge.edge.protocol.channel import Connected, Event, Health, Received
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, DeviceStatus, RoundTask, decode, encode
from sparsyedge.edge.protocol.topics import Topics

__all__ = ["Drop", "HeldClock", "Hub"]

Drop = Callable[[int, str], bool]
"""Whether a device takes a round's task and then disappears."""

HELD_SHARE = 0.9


class HeldClock:
    """A clock that follows `clock` but stops short of a deadline until told to let it pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._skipped_s = 0.0
        self._limit_s: float | None = None
        self._deadline_s = 0.0

    def __call__(self) -> float:
        now_s = self._clock() + self._skipped_s
        return now_s if self._limit_s is None else min(now_s, self._limit_s)

    def hold(self, left_s: float) -> None:
        """Stop before a deadline that is `left_s` away."""
        now_s = self()
        self._deadline_s = now_s + left_s
        self._limit_s = now_s + HELD_SHARE * left_s

    def release(self) -> None:
        """Resume from the current time."""
        now_s = self()
        self._limit_s = None
        self._skipped_s = now_s - self._clock()

    def pass_deadline(self) -> None:
        """Move the clock to one second past the deadline."""
        self._limit_s = None
        self._skipped_s = self._deadline_s + 1.0 - self._clock()


class Hub:
    """A channel for one coordinator, in its thread; `samples` maps each device to its number of samples."""

    def __init__(
        self,
        topics: Topics,
        samples: Mapping[str, int],
        *,
        devices_dir: Path,
        workers: Workers,
        clock: HeldClock,
        drop: Drop | None,
        classes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`classes` are the devices' shares of classes, for a run that asks for them."""
        self._topics = topics
        self._samples = samples
        self._devices_dir = devices_dir
        self._workers = workers
        self._clock = clock
        self._drop = drop
        self._classes = classes or {}
        self._retained: dict[str, bytes] = {}
        self._patterns: set[str] = set()
        self._inbox: deque[Event] = deque()
        self._open = False
        self._round: tuple[int, int | UnsetType] = (0, UNSET)
        """The round whose members have had their turns, and the evaluation round if it is one."""
        self._told: set[str] = set()
        self._waiting: deque[str] = deque()

    # ---- the coordinator's channel -----------------------------------------------------------------------------------

    @property
    def chunk_bytes(self) -> int:
        return CHUNK_BYTES

    def open(self, timeout_s: float = 10.0) -> None:
        """All devices are online from the start."""
        self._inbox.append(Connected())
        for device, samples in self._samples.items():
            status = DeviceStatus(
                state="online",
                boot_id=BOOT_ID,
                samples=samples,
                software=SOFTWARE,
                speaks=OURS,
                classes=self._classes.get(device, UNSET),
            )
            self._inbox.append(Received(self._topics.status(device), encode(status), True))

    def close(self) -> None:
        """Do nothing: the hub does not own the workers."""

    def subscribe(self, pattern: str, *, as_published: bool = False, latest: bool = False) -> None:
        self._patterns.add(pattern)

    def unsubscribe(self, pattern: str) -> None:
        self._patterns.discard(pattern)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        if retain and payload:
            self._retained[topic] = payload
        elif retain:
            self._retained.pop(topic, None)
        for worker in self._workers.all:
            if any(matches(pattern, topic) for pattern in worker.patterns):
                worker.send(Carry(topic, payload, False))
        if topic == self._topics.round and payload:
            self._note_task(decode(payload, RoundTask))

    def receive(self, timeout_s: float) -> Event | None:
        self._give_turns()
        if not self._inbox:
            if timeout_s > 0 and self._open and not self._workers.busy and not self._waiting:
                # No device can still answer, so the round's time is over.
                self._clock.pass_deadline()
                return None
            for worker in self._workers.ready(timeout_s):
                self._hear(worker)
        return self._inbox.popleft() if self._inbox else None

    def health(self) -> Health:
        return Health(len(self._inbox))

    # ---- the devices' turns ------------------------------------------------------------------------------------------

    def _note_task(self, task: RoundTask) -> None:
        """Give turns to the cohort of an open round; a closed round needs none."""
        if (task.round, task.evaluation) != self._round:
            self._round = task.round, task.evaluation
            self._told.clear()
            self._drop_old_models({task.model_id, *(delta.base for delta in task.deltas)})
        self._open = task.state == "open"
        if not self._open:
            self._waiting.clear()
            self._clock.release()
            return
        self._clock.hold(task.deadline_unix_s - time.time())
        for device in task.cohort:
            if device not in self._told:
                self._told.add(device)
                if self._drop is None or not self._drop(task.round, device):
                    self._waiting.append(device)

    def _drop_old_models(self, useful: set[str]) -> None:
        """Remove cached models that no difference refers to any more; they would fill the disk."""
        for path in self._devices_dir.glob("*/models/*.frame"):
            if path.stem not in useful:
                path.unlink(missing_ok=True)

    def _give_turns(self) -> None:
        while self._waiting and (worker := self._workers.idle()) is not None:
            worker.give_turn(self._waiting.popleft())

    def _hear(self, worker: Worker) -> None:
        match worker.receive():
            case Publish(topic, payload):
                if any(matches(pattern, topic) for pattern in self._patterns):
                    self._inbox.append(Received(topic, payload, False))
            case Subscribe(pattern):
                worker.patterns.add(pattern)
                for topic, payload in self._retained.items():
                    if matches(pattern, topic):
                        worker.send(Carry(topic, payload, True))
            case Unsubscribe(pattern):
                worker.patterns.discard(pattern)
            case Lost(device):
                # Of a closed round nothing is missing. What the device has sent, it will ask about in its next turn.
                if self._open:
                    self._waiting.appendleft(device)
            case _:
                pass
