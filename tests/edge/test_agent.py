"""The agent against a coordinator that lives in a fake link: no broker, no threads, no ONNX Runtime."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from sparsyedge.edge import agent as agent_module
from sparsyedge.edge import courier as courier_module
from sparsyedge.edge import workbench as workbench_module
from sparsyedge.edge.agent import Action, Agent, check_fit, decide, describe
from sparsyedge.edge.artifacts import MANIFEST_VERSION, Artifacts, decode_manifest
from sparsyedge.edge.cache import Cache
from sparsyedge.edge.courier import Courier, Member, offline_status
from sparsyedge.edge.data import Samples
from sparsyedge.edge.energy import NullMeter, PhaseCost
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.link import Connected, Link, Received
from sparsyedge.edge.messages import (
    Accepted,
    Blob,
    Delta,
    DeviceStatus,
    Grant,
    Offer,
    Refused,
    Reply,
    Report,
    RoundTask,
    Topics,
    decode,
    encode,
)
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.outbox import Outbox, task_key
from sparsyedge.edge.tensors import FloatArray, State, model_id
from sparsyedge.edge.transfer import Assembly, blob_of, chunk_of
from sparsyedge.edge.wire import decode_frame, encode_frame
from sparsyedge.edge.workbench import Workbench

pytestmark = pytest.mark.timeout(30)

DEVICE = "pi-01"
TOPICS = Topics("home")
CHUNK = 1024
SAMPLES = 10
SHAPES = {"conv.weight": (64, 3, 3, 3), "fc.bias": (4,)}
RNG = np.random.default_rng(0)
INITIAL: State = {name: RNG.random(shape, dtype=np.float32) for name, shape in SHAPES.items()}
ROLES = ("training", "eval", "optimizer", "checkpoint", "inference")
FILES = {role: role.encode() * 700 for role in ROLES}


def manifest(**changes: Any) -> bytes:
    content = {
        "version": MANIFEST_VERSION,
        "ops_abi": ABI_VERSION,
        "model": "tiny",
        "width": 8,
        "classes": 4,
        "input_shape": [3, 8, 8],
        "method": {
            "name": "sparsyfed",
            "beta": 1.25,
            "sparsity": 0.5,
            "weight_decay": 1e-3,
            "prune_activations": True,
            "zero_grad_at_zero": False,
        },
        "seed": 1,
        "opset": 17,
        "made_with": {},
        "parameters": [
            {"name": name, "shape": shape, "trainable": True, "prunable": len(shape) > 1}
            for name, shape in SHAPES.items()
        ],
        "batch_norms": [],
        "batch_norm_momentum": 0.9,
        "initial_model": model_id(INITIAL),
        "files": {
            role: {"name": f"{role}.bin", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for role, content in FILES.items()
        },
    }
    return msgspec.json.encode({**content, **changes})


class FakeSession:
    """Adds a ramp to the weights with every step; counts its steps over all sessions."""

    kind = "dense"
    steps = 0
    losses: tuple[float, ...] = ()
    """Of the first steps; later ones have 0.5."""
    on_step: Callable[[], None] | None = None

    def __init__(self, artifacts: Artifacts, *, threads: int = 1) -> None:
        assert artifacts.path("training").read_bytes() == FILES["training"]
        self.parameters = {name: tensor.copy() for name, tensor in INITIAL.items()}

    def load(self, state: State) -> None:
        self.parameters = {name: tensor.copy() for name, tensor in state.items()}

    def state(self) -> State:
        return {name: tensor.copy() for name, tensor in self.parameters.items()}

    def train_step(self, x: FloatArray, y: NDArray[np.int64], learning_rate: float) -> float:
        FakeSession.steps += 1
        if FakeSession.on_step:
            FakeSession.on_step()
        for tensor in self.parameters.values():
            tensor += learning_rate * np.arange(1, tensor.size + 1, dtype=np.float32).reshape(tensor.shape)
        first = FakeSession.losses[FakeSession.steps - 1 : FakeSession.steps]
        return first[0] if first else 0.5


class Coordinator(Link):
    """A link whose other end answers at once: a broker with retained messages, and a coordinator that accepts."""

    def __init__(self) -> None:
        super().__init__("nowhere", 1, identity="test")
        self.inbox: deque[Received | Connected] = deque([Connected()])
        self.retained: dict[str, bytes] = {}
        self.patterns: set[str] = set()
        self.published: list[tuple[str, bytes]] = []
        self.fetched: list[str] = []
        self.assembly: Assembly | None = None
        self.verdict: Callable[[Offer], Reply | None] = lambda offer: Accepted(**identity(offer))
        self.after_verdict: Callable[[], None] = lambda: self.announce(round_task(state="finished"))
        self.on_offer: Callable[[], None] = lambda: None
        self.lost_topics: set[str] = set()
        self.lost_uploads: set[int] = set()

    # What the agent's side calls.

    def subscribe(self, pattern: str) -> None:
        self.patterns.add(pattern)
        if "/blob/" in pattern:
            self.fetched.append(pattern.split("/")[-2])
        for topic, payload in self.retained.items():
            if topic == pattern or (pattern.endswith("/+") and topic.rsplit("/", 1)[0] == pattern[:-2]):
                if topic in self.lost_topics:
                    self.lost_topics.remove(topic)
                else:
                    self.inbox.append(Received(topic, payload, retained=True))

    def unsubscribe(self, pattern: str) -> None:
        self.patterns.remove(pattern)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        self.published.append((topic, payload))
        match TOPICS.parse(topic):
            case ("dev", _, "offer"):
                self._answer(decode(payload, Offer))
                self.on_offer()
            case ("dev", _, "up", _, index) if int(index) in self.lost_uploads:
                self.lost_uploads.remove(int(index))
            case ("dev", _, "up", _, index):
                assert self.assembly is not None
                self.assembly.put(int(index), payload)

    def receive(self, timeout_s: float) -> Received | Connected | None:
        return self.inbox.popleft() if self.inbox else None

    # What the test calls.

    def announce(self, task: RoundTask) -> None:
        self.retained[TOPICS.round] = encode(task)
        self.inbox.append(Received(TOPICS.round, encode(task), retained=False))

    def offer_blob(self, content: bytes, *, blob: Blob | None = None) -> Blob:
        blob = blob or blob_of(content, chunk_bytes=CHUNK)
        for index in range(blob.chunks):
            self.retained[TOPICS.chunk(blob.sha256, index)] = chunk_of(content, blob, index)
        return blob

    def sent(self, kind: Literal["status", "offer", "report"]) -> list[bytes]:
        return [payload for topic, payload in self.published if TOPICS.parse(topic)[2] == kind]

    def uploaded_chunks(self) -> list[int]:
        return [int(topic.rsplit("/", 1)[1]) for topic, _ in self.published if TOPICS.parse(topic)[2] == "up"]

    def _answer(self, offer: Offer) -> None:
        if self.assembly is None:
            self.assembly = Assembly(offer.update)
        reply: Reply | None
        if self.assembly.complete:
            reply = self.verdict(offer)
        else:
            reply = Grant(**identity(offer), missing=self.assembly.missing())
        if reply is not None:
            self.inbox.append(Received(TOPICS.reply(DEVICE), encode(reply), retained=False))
        if isinstance(reply, Accepted | Refused):
            self.after_verdict()


def identity(offer: Offer) -> dict[str, Any]:
    return {"run": offer.run, "round": offer.round, "update": offer.update.sha256}


NO_BLOB = Blob(sha256="f" * 64, bytes=0, chunk_bytes=CHUNK)


def round_task(**changes: Any) -> RoundTask:
    task = RoundTask(
        run="demo",
        round=1,
        rounds=3,
        state="open",
        cohort=(DEVICE, "pi-02"),
        manifest=blob_of(manifest(), chunk_bytes=CHUNK),
        model_id=model_id(INITIAL),
        model=NO_BLOB,
        learning_rate=0.25,
        epochs=2,
        batch_size=4,
        sparsity=0.5,
        seed=1,
        deadline_unix_s=0.0,
    )
    return msgspec.structs.replace(task, **changes)


def samples(*, label: int = 3, shape: tuple[int, ...] = (3, 8, 8)) -> Samples:
    return Samples(np.zeros((SAMPLES, *shape), dtype=np.uint8), np.full(SAMPLES, label, dtype=np.int64))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench_module, "DenseSession", FakeSession)
    monkeypatch.setattr(agent_module, "RETRY_S", 0.02)
    monkeypatch.setattr(courier_module, "STALL_S", 0.02)
    monkeypatch.setattr(courier_module, "OFFER_AGAIN_S", 0.02)
    monkeypatch.setattr(courier_module, "LAST_WORD_S", 0.05)
    monkeypatch.setattr(FakeSession, "steps", 0)
    monkeypatch.setattr(FakeSession, "losses", ())
    monkeypatch.setattr(FakeSession, "on_step", None)


@pytest.fixture
def coordinator() -> Coordinator:
    coordinator = Coordinator()
    coordinator.offer_blob(manifest())
    for content in FILES.values():
        coordinator.offer_blob(content)
    return coordinator


@pytest.fixture
def make_agent(coordinator: Coordinator, tmp_path: Path) -> Callable[..., Agent]:
    def make(data: Samples | None = None) -> Agent:
        member = Member(device=DEVICE, topics=TOPICS, boot_id="boot", software="test", samples=SAMPLES)
        courier = Courier(coordinator, member)
        courier.join()
        return Agent(
            DEVICE,
            courier,
            samples=data or samples(),
            meter=NullMeter(),
            cache=Cache(tmp_path),
            outbox=Outbox(tmp_path / "outbox"),
            workbench=Workbench(),
            until_finished=True,
        )

    return make


def frame_of(state: State, *, base_id: str, base: State | None = None, round_number: int = 2) -> bytes:
    prunable = [name for name, shape in SHAPES.items() if len(shape) > 1]
    encoded = encode_frame(state, run="demo", round_number=round_number, base_id=base_id, base=base, prunable=prunable)
    return encoded.frame


def received_state(coordinator: Coordinator, base: State | None = None) -> State:
    assert coordinator.assembly is not None
    return decode_frame(coordinator.assembly.content(), SHAPES, base).state


# ---- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "settled", "pending", "until_finished", "expected"),
    [
        ({}, None, None, False, Action.TRAIN),
        ({}, "other", "other", False, Action.TRAIN),
        ({}, None, "key", False, Action.OFFER),
        ({}, "key", None, False, Action.WAIT),
        ({}, "key", "key", False, Action.WAIT),
        ({"cohort": ("pi-02",)}, None, None, False, Action.WAIT),
        ({"state": "closed"}, None, "key", False, Action.WAIT),
        ({"state": "finished"}, None, None, False, Action.WAIT),
        ({"state": "finished"}, None, None, True, Action.LEAVE),
        ({"state": "closed"}, None, None, True, Action.WAIT),
    ],
)
def test_what_a_task_asks_of_a_device(
    changes: dict[str, Any], settled: str | None, pending: str | None, until_finished: bool, expected: Action
) -> None:
    action = decide(
        round_task(**changes),
        device=DEVICE,
        key="key",
        settled=settled,
        pending=pending,
        until_finished=until_finished,
    )
    assert action is expected


def test_key_depends_on_what_the_update_depends_on_and_on_nothing_else() -> None:
    key = task_key(round_task(), SAMPLES)
    assert task_key(round_task(deadline_unix_s=9.0, cohort=(DEVICE,), state="closed"), SAMPLES) == key
    others = [
        task_key(round_task(), SAMPLES + 1),
        *(
            task_key(round_task(**{name: value}), SAMPLES)
            for name, value in {
                "run": "other",
                "round": 2,
                "manifest": NO_BLOB,
                "model_id": "0" * 64,
                "learning_rate": 0.1,
                "epochs": 1,
                "batch_size": 2,
                "sparsity": 0.9,
                "seed": 2,
            }.items()
        ),
    ]
    assert len({key, *others}) == len(others) + 1


def test_data_that_fits_the_model_is_taken() -> None:
    check_fit(samples(), decode_manifest(manifest(), source="test"))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (samples(shape=(1, 8, 8)), r"samples have shape \(1, 8, 8\), the model takes \(3, 8, 8\); point"),
        (samples(label=4), r"data has label 4, the model knows 0\.\.3; point"),
    ],
)
def test_data_that_does_not_fit_the_model_is_refused(data: Samples, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        check_fit(data, decode_manifest(manifest(), source="test"))


def test_report_is_one_line_with_every_figure() -> None:
    report = Report(
        run="demo",
        round=3,
        phases={"download": PhaseCost(0.5, None), "train": PhaseCost(12.25, 30.5)},
        energy_source="rapl",
        energy_kind="measured",
        bytes_down=1000,
        bytes_up=200,
        steps=42,
        loss=0.125,
        peak_rss_mb=123.4,
        pid=1,
    )
    assert describe(report) == (
        "round 3: download 0.50 s, train 12.25 s 30.50 J (energy measured, rapl); "
        "1000 B down, 200 B up; 42 steps, loss 0.1250; peak RSS 123 MB"
    )


# ---- one round -------------------------------------------------------------------------------------------------------


def test_round_goes_from_download_to_final_report(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    coordinator.announce(round_task())
    make_agent().run()

    assert decode(coordinator.sent("status")[0], DeviceStatus).state == "online"
    assert coordinator.sent("status")[-1] == offline_status("boot")
    state = received_state(coordinator)
    assert int(np.count_nonzero(state["conv.weight"])) == 864
    # Six steps of 0.25 (two epochs of three batches) up a ramp; the lower half of the prunable weights is gone.
    trained = INITIAL["conv.weight"].reshape(-1) + 6 * 0.25 * np.arange(1, 1729)
    np.testing.assert_allclose(state["conv.weight"].reshape(-1), np.where(np.arange(1728) < 864, 0, trained), rtol=1e-5)
    np.testing.assert_allclose(state["fc.bias"], INITIAL["fc.bias"] + 6 * 0.25 * np.arange(1, 5), rtol=1e-5)
    offer = decode(coordinator.sent("offer")[0], Offer)
    assert (offer.samples, offer.base, offer.report.steps) == (SAMPLES, model_id(INITIAL), 6)
    assert list(offer.report.phases) == ["download", "train", "prune", "encode"]
    report = decode(coordinator.sent("report")[0], Report)
    assert list(report.phases) == ["download", "train", "prune", "encode", "upload"]
    fetched = [content for role, content in FILES.items() if role != "inference"]
    assert report.bytes_down == len(manifest()) + sum(map(len, fetched))
    assert report.bytes_up == offer.update.bytes
    assert report.pid > 0
    assert report.loss == 0.5


def test_later_round_fetches_the_model_only(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    model = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    frame = frame_of(model, base_id=model_id(model))
    second = round_task(round=2, model_id=model_id(model), model=coordinator.offer_blob(frame))

    def go_on() -> None:
        coordinator.assembly = None
        coordinator.after_verdict = lambda: coordinator.announce(round_task(state="finished"))
        coordinator.fetched.clear()
        coordinator.announce(second)

    coordinator.announce(round_task())
    coordinator.after_verdict = go_on
    make_agent().run()

    assert coordinator.fetched == [second.model.sha256]
    reports = [decode(payload, Report) for payload in coordinator.sent("report")]
    assert [report.round for report in reports] == [1, 2]
    assert reports[1].bytes_down == len(frame)
    np.testing.assert_allclose(received_state(coordinator, model)["fc.bias"], 2 + 6 * 0.25 * np.arange(1, 5))


def test_device_that_holds_the_model_before_fetches_the_difference_only(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    before = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    after = {name: np.full(shape, 2.5, dtype=np.float32) for name, shape in SHAPES.items()}
    whole = coordinator.offer_blob(frame_of(before, base_id=model_id(before)))
    difference = frame_of(after, base_id=model_id(before), base=before)
    delta = Delta(base=model_id(before), model=coordinator.offer_blob(difference))
    older = Delta(base="0" * 64, model=NO_BLOB)
    third = round_task(round=3, model_id=model_id(after), model=whole, deltas=(older, delta))

    def go_on() -> None:
        coordinator.assembly = None
        coordinator.after_verdict = lambda: coordinator.announce(round_task(state="finished"))
        coordinator.fetched.clear()
        coordinator.announce(third)

    coordinator.announce(round_task(round=2, model_id=model_id(before), model=whole))
    coordinator.after_verdict = go_on
    make_agent().run()

    assert coordinator.fetched == [delta.model.sha256]
    np.testing.assert_allclose(received_state(coordinator, after)["fc.bias"], 2.5 + 6 * 0.25 * np.arange(1, 5))


def test_restarted_device_has_artifacts_and_model_on_disk(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    model = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    frame = frame_of(model, base_id=model_id(model))
    task = round_task(round=2, model_id=model_id(model), model=coordinator.offer_blob(frame))
    coordinator.announce(task)
    make_agent().run()
    coordinator.fetched.clear()
    coordinator.assembly = None
    coordinator.announce(msgspec.structs.replace(task, seed=2))
    make_agent().run()
    assert coordinator.fetched == []


def test_device_outside_the_cohort_does_nothing(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    coordinator.announce(round_task(cohort=("pi-02",)))
    coordinator.announce(round_task(state="finished"))
    make_agent().run()
    assert (FakeSession.steps, coordinator.sent("offer")) == (0, [])


def test_stopped_agent_leaves_with_its_status_offline(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent()
    agent.stop()
    agent.run()
    assert coordinator.sent("status") == [offline_status("boot")]


# ---- what can go wrong -----------------------------------------------------------------------------------------------


def test_lost_chunk_is_asked_for_again(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    lost = blob_of(FILES["training"], chunk_bytes=CHUNK)
    coordinator.lost_topics = {TOPICS.chunk(lost.sha256, 2)}
    coordinator.announce(round_task())
    make_agent().run()
    assert coordinator.fetched.count(lost.sha256) == 2
    assert len(coordinator.sent("report")) == 1


def test_chunks_lost_on_the_way_up_are_sent_again(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    coordinator.lost_uploads = {0}
    coordinator.announce(round_task())
    make_agent().run()
    chunks = coordinator.uploaded_chunks()
    assert (chunks.count(0), chunks.count(1)) == (2, 1)
    assert len(coordinator.sent("report")) == 1


def test_offer_is_repeated_while_the_coordinator_is_silent(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    silences = iter([None, None])

    def verdict(offer: Offer) -> Reply | None:
        return next(silences, Accepted(**identity(offer)))

    coordinator.verdict = verdict
    coordinator.announce(round_task())
    make_agent().run()
    assert len(coordinator.sent("offer")) >= 4
    assert len(set(coordinator.sent("offer"))) == 1


def test_answers_to_another_offer_are_ignored(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    stranger = Accepted(run="demo", round=1, update="0" * 64)
    coordinator.inbox.append(Received(TOPICS.reply(DEVICE), encode(stranger), retained=False))
    coordinator.announce(round_task())
    make_agent().run()
    assert received_state(coordinator)


def test_refused_update_is_dropped_with_the_reason_in_the_log(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    coordinator.verdict = lambda offer: Refused(**identity(offer), reason="round 1 is closed")
    coordinator.announce(round_task())
    make_agent().run()
    assert "refused the update: round 1 is closed" in caplog.text
    assert coordinator.sent("report") == []
    assert Outbox(tmp_path / "outbox").pending is None


def test_round_that_closes_ends_the_training(coordinator: Coordinator, make_agent: Callable[..., Agent]) -> None:
    def close() -> None:
        coordinator.announce(round_task(state="closed"))
        coordinator.announce(round_task(state="finished"))

    FakeSession.on_step = close
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 1
    assert coordinator.sent("offer") == []


def test_longer_deadline_does_not_disturb_the_training(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    FakeSession.on_step = lambda: coordinator.announce(round_task(deadline_unix_s=float(FakeSession.steps)))
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 6


def test_restarted_device_offers_its_update_without_training_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    agent = make_agent()
    coordinator.verdict = lambda offer: None
    coordinator.on_offer = agent.stop
    coordinator.announce(round_task())
    agent.run()
    assert FakeSession.steps == 6
    offered = coordinator.sent("offer")[0]

    coordinator.on_offer = lambda: None
    coordinator.verdict = lambda offer: Accepted(**identity(offer))
    make_agent().run()
    assert FakeSession.steps == 6
    assert coordinator.sent("offer")[-1] == offered
    assert list(decode(coordinator.sent("report")[0], Report).phases)[-1] == "upload"


def test_task_published_again_after_the_answer_is_not_done_twice(
    coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    def announce_again() -> None:
        coordinator.announce(round_task(deadline_unix_s=5.0))
        coordinator.announce(round_task(state="finished"))

    coordinator.after_verdict = announce_again
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 6
    assert len(coordinator.sent("report")) == 1


def test_model_that_is_not_the_announced_one_is_refused_and_tried_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = frame_of(INITIAL, base_id="0" * 64)
    task = round_task(round=2, model_id="ab" * 32, model=coordinator.offer_blob(wrong))
    subscribe = coordinator.subscribe

    def finish_at_the_third_try(pattern: str) -> None:
        subscribe(pattern)
        if coordinator.fetched.count(task.model.sha256) == 3:
            coordinator.announce(round_task(state="finished"))

    coordinator.subscribe = finish_at_the_third_try  # type: ignore[method-assign]
    coordinator.announce(task)
    make_agent().run()
    assert "the frame announced as model abababababab holds model" in caplog.text
    assert "trying again" in caplog.text
    assert FakeSession.steps == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 99}, "manifest version 99"),
        ({"ops_abi": 99}, "op library ABI 99"),
        ({"input_shape": [1, 8, 8]}, "samples have shape"),
        ({"classes": 3}, "data has label 3"),
    ],
)
def test_artifacts_that_do_not_suit_are_one_line_in_the_log(
    changes: dict[str, Any],
    sentence: str,
    coordinator: Coordinator,
    make_agent: Callable[..., Agent],
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = round_task(manifest=coordinator.offer_blob(manifest(**changes)))
    agent = make_agent()

    class FinishWhenIdle(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for the next round" in record.getMessage():
                coordinator.announce(round_task(state="finished"))

    handler = FinishWhenIdle()
    agent_module.log.addHandler(handler)
    try:
        coordinator.announce(task)
        agent.run()
    finally:
        agent_module.log.removeHandler(handler)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert sentence in errors[0].getMessage()
    assert errors[0].exc_info is None
    assert FakeSession.steps == 0


def test_loss_that_is_not_finite_costs_the_round_and_not_the_device(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    FakeSession.losses = (float("nan"),)
    FakeSession.on_step = lambda: coordinator.announce(round_task(round=2)) if FakeSession.steps == 1 else None
    coordinator.announce(round_task())
    make_agent().run()
    assert "loss became nan" in caplog.text
    assert [decode(payload, Report).round for payload in coordinator.sent("report")] == [2]


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        (TOPICS.round, b"\xff\xfe"),
        (TOPICS.round, b'{"run": "x"}'),
        (TOPICS.reply(DEVICE), b"[]"),
        (TOPICS.round + "/x", b""),
        (TOPICS.chunk("0" * 64, 1), b"stray"),
    ],
)
def test_nonsense_is_ignored(
    topic: str, payload: bytes, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    coordinator.inbox.append(Received(topic, payload, retained=False))
    coordinator.announce(round_task())
    make_agent().run()
    assert len(coordinator.sent("report")) == 1


@pytest.mark.parametrize("index", ["x", "-1", "9" * 5000, "99", ""])
def test_chunk_with_a_wrong_number_is_ignored(
    index: str, coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    blob = blob_of(FILES["training"], chunk_bytes=CHUNK)
    coordinator.retained = {f"{TOPICS.root}/blob/{blob.sha256}/{index}": b"evil", **coordinator.retained}
    coordinator.announce(round_task())
    make_agent().run()
    assert "ignored a message" in caplog.text
    assert len(coordinator.sent("report")) == 1


def test_damaged_files_on_disk_are_fetched_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    folder = Cache(tmp_path).folder(round_task().manifest.sha256)
    (folder / "training.bin").write_bytes(b"rust")
    coordinator.fetched.clear()
    coordinator.assembly = None
    coordinator.announce(round_task(seed=2))
    make_agent().run()
    assert coordinator.fetched == [hashlib.sha256(FILES["training"]).hexdigest()]
    assert "training.bin does not match its hash" in caplog.text


def test_damaged_update_on_disk_is_made_again(
    coordinator: Coordinator, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    coordinator.announce(round_task())
    make_agent().run()
    (tmp_path / "outbox" / "update.outbox").write_bytes(b"rust")
    coordinator.assembly = None
    coordinator.announce(round_task())
    make_agent().run()
    assert FakeSession.steps == 12


def test_full_disk_costs_the_round_and_not_the_device(
    coordinator: Coordinator,
    make_agent: Callable[..., Agent],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: Cache, manifest: str, name: str, content: bytes) -> None:
        coordinator.announce(round_task(state="finished"))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cache, "keep_file", fail)
    coordinator.announce(round_task())
    make_agent().run()
    assert "No space left on device; waiting for the next round" in caplog.text


# ---- the cache -------------------------------------------------------------------------------------------------------


def test_newest_two_models_are_kept_and_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    frames = [frame_of(INITIAL, base_id="00", round_number=number) for number in range(3)]
    for number, frame in enumerate(frames):
        cache.keep_model(f"model{number}", frame)
    assert [cache.model(f"model{number}") for number in range(3)] == [None, frames[1], frames[2]]
    (tmp_path / "models" / "model2.frame").write_bytes(frames[2][:-1])
    assert cache.model("model2") is None
    assert "is damaged" in caplog.text
    assert not (tmp_path / "models" / "model2.frame").exists()


def test_newest_two_exports_are_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for name in ("first", "second", "third"):
        cache.keep_file(name, "training.bin", b"x")
    assert sorted(path.name for path in (tmp_path / "artifacts").iterdir()) == ["second", "third"]
