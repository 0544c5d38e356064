"""The leader's turns: messages that wait together share a commit, and changes of the cohort an announcement."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.reports import plain_report
from fixtures.scripted_fleet import answer

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.leader import Leader
from sparsyedge.coordinator.model.run_model import open_model
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Connected, Event, Received
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import (
    CHUNK_BYTES,
    Accepted,
    DeviceStatus,
    Grant,
    Offer,
    Reply,
    RoundTask,
    Topics,
    decode,
    decode_reply,
    encode,
)
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.frame import encode_frame

TOPICS = Topics("lab")
DEVICES = tuple(f"d{number}" for number in range(1, 9))


class Queue:
    """A channel that is a queue; `idle` is called when it is empty, `heard` for every message to a device."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self) -> None:
        self.inbox: deque[Event] = deque([Connected()])
        self.tasks: list[RoundTask] = []
        self.replies: list[tuple[str, Reply]] = []
        self.idle: Callable[[], None] = lambda: None
        self.heard: Callable[[str, Reply], None] = lambda device, reply: None

    def open(self, timeout_s: float = 10.0) -> None: ...

    def close(self) -> None: ...

    def subscribe(self, pattern: str, *, as_published: bool = False) -> None: ...

    def unsubscribe(self, pattern: str) -> None: ...

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        if topic == TOPICS.round and payload:
            self.tasks.append(decode(payload, RoundTask))
        elif topic.endswith("/reply"):
            device, reply = topic.split("/")[-2], decode_reply(payload)
            self.replies.append((device, reply))
            self.heard(device, reply)

    def receive(self, timeout_s: float) -> Event | None:
        if not self.inbox and timeout_s > 0:
            self.idle()
        return self.inbox.popleft() if self.inbox else None

    def say(self, device: str, *, unfit: str = "") -> None:
        status = DeviceStatus(state="online", boot_id="b", samples=10, unfit=unfit)
        self.inbox.append(Received(TOPICS.status(device), encode(status), True))


class Run:
    """A run in a folder, led over a queue."""

    def __init__(self, folder: Path, artifacts: Artifacts, initial: State, **changes: object) -> None:
        self.link, self.interrupted = Queue(), threading.Event()
        self.initial = initial
        self.config = RunConfig(
            name="r1",
            fleet="lab",
            artifacts=str(artifacts.directory),
            run_dir=str(folder / "run"),
            dataset="digits",
            rounds=1,
            **{"cohort_size": 4, "deadline_s": 1000.0, **changes},  # type: ignore[arg-type]
        )
        self.store = Store.create(self.config.run_path, name="r1", fleet="lab", rounds=1, dense_bytes=1, config="{}")
        self.artifacts = artifacts

    def lead(self) -> None:
        model = open_model(
            self.config, self.artifacts, self.initial, store=self.store, evaluate=lambda state: Evaluation(0.5, 1.0)
        )
        Leader(
            self.config,
            self.artifacts,
            link=self.link,
            store=self.store,
            model=model,
            observer=SilentObserver(),
            interrupted=self.interrupted,
        ).lead()

    def offer(self, device: str) -> tuple[Offer, bytes]:
        task = self.link.tasks[0]
        frame = encode_frame(
            answer(device, 1, self.initial), run="r1", round_number=1, base_id=task.model_id, prunable=["fc.weight"]
        ).frame
        report = plain_report("r1", 1)
        return Offer(run="r1", round=1, base=task.model_id, update=blob_of(frame), samples=10, report=report), frame


@pytest.fixture
def run(tmp_path: Path, artifacts: Artifacts, initial: State) -> Run:
    return Run(tmp_path, artifacts, initial)


def test_updates_that_arrive_together_share_a_commit_and_are_durable_before_any_answer(run: Run) -> None:
    commits: list[bool] = []
    recorded: list[int] = []
    with closing(run.store), closing(Store.open(run.config.run_path)) as reader:

        def heard(device: str, reply: Reply) -> None:
            if isinstance(reply, Grant):
                offer, frame = run.offer(device)
                run.link.inbox.append(Received(TOPICS.upload(device, offer.update.sha256, 0), frame, False))
            if isinstance(reply, Accepted):
                recorded.append(len(reader.accepted(1)))

        def idle() -> None:
            if recorded:
                run.interrupted.set()
            elif run.link.tasks:
                commits.clear()
                offers = [(device, run.offer(device)[0]) for device in DEVICES[:3]]
                run.link.inbox.extend(Received(TOPICS.offer(device), encode(offer), False) for device, offer in offers)

        run.link.heard, run.link.idle = heard, idle
        for device in DEVICES[:4]:
            run.link.say(device)
        commit = run.store.commit
        run.store.commit = lambda: commits.append(run.store._db.in_transaction) or commit()  # type: ignore
        run.lead()
        assert recorded == [3, 3, 3]
        assert commits.count(True) <= 2


def test_an_update_is_not_acknowledged_if_its_commit_fails(run: Run) -> None:
    with closing(run.store):

        def heard(device: str, reply: Reply) -> None:
            if isinstance(reply, Grant):
                offer, frame = run.offer(device)
                run.link.inbox.append(Received(TOPICS.upload(device, offer.update.sha256, 0), frame, False))

        def idle() -> None:
            if run.link.tasks:

                def full() -> None:
                    raise OSError(28, "No space left on device")

                run.store.before_commit = full
                run.link.inbox.append(Received(TOPICS.offer("d1"), encode(run.offer("d1")[0]), False))

        run.link.heard, run.link.idle = heard, idle
        for device in DEVICES[:4]:
            run.link.say(device)
        with pytest.raises(OSError, match="No space left"):
            run.lead()
        assert [type(reply) for _, reply in run.link.replies] == [Grant]


def test_members_that_are_replaced_together_share_an_announcement(run: Run) -> None:
    with closing(run.store):

        def idle() -> None:
            if len(run.link.tasks) == 1:
                for device in run.link.tasks[0].cohort[:3]:
                    run.link.say(device, unfit="too hot")
            elif run.link.tasks:
                run.interrupted.set()

        run.link.idle = idle
        for device in (*DEVICES[4:], *DEVICES[:4]):
            run.link.say(device)
        run.lead()
        opened, changed, *_ = run.link.tasks
        assert len({*opened.cohort, *changed.cohort}) == 7
        assert [task.state for task in run.link.tasks] == ["open", "open", "finished"]
        recorded = run.store.progress().open
        assert recorded is not None
        assert recorded.cohort == changed.cohort
