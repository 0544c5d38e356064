"""Members of a secured fleet that break the rules, with a real Mosquitto: refused, told why, counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.dense_way import average, change_norms
from fixtures.hostile_frames import large_name_frame, send
from fixtures.scripted_fleet import TOPICS, FakeDevice, RunThread, answer
from fixtures.secured import make_member

from sparsyedge.coordinator.aggregation.rules import RULES
from sparsyedge.coordinator.aggregation.update_checks import max_update_bytes
from sparsyedge.coordinator.aggregation_config import DEFAULT_RULE
from sparsyedge.coordinator.authority.artifact_signing import sign
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.refusals import TOLD_PER_MINUTE
from sparsyedge.coordinator.fleet.revoked_devices import BANNED
from sparsyedge.coordinator.record.live import LiveReader
from sparsyedge.coordinator.record.observer import Observer, SilentObserver
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.service import Coordinator
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.chunks import chunk_of
from sparsyedge.edge.protocol.messages import Accepted, Grant, Offer, Progress, Refused, RoundTask, encode
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.text import MAX_TEXT
from sparsyedge.edge.wire.frame import decode_frame

pytestmark = pytest.mark.mosquitto

LIMIT_S = 300.0
NAMES = ("d1", "d2", "d3", "d4")


class SecuredFleet:
    """Four members over TLS, and a run that they take part in."""

    def __init__(self, authority: Authority, artifacts: Artifacts, initial: State, folder: Path) -> None:
        self.authority = authority
        library = folder / "library.so"
        library.write_bytes(b"an op library")
        self.artifacts = sign(authority, artifacts.directory, [library])
        self.initial = initial
        self.config = RunConfig(
            name="r1",
            artifacts=str(artifacts.directory),
            run_dir=str(folder / "run"),
            dataset="none",
            fleet="lab",
            rounds=2,
            cohort_size=len(NAMES),
            codec="lossless",
            min_updates=1,
            deadline_s=LIMIT_S,
            authority=str(authority.folder),
        )
        port = authority.settings.port
        self.devices = {
            name: FakeDevice(port, name, initial, make_member(authority, name, folder / name)) for name in NAMES
        }
        for device in self.devices.values():
            device.listen(1.0)

    def start(self, *, observer: Observer | None = None, **changes: object) -> RunThread:
        self.config = msgspec.structs.replace(self.config, **changes)
        coordinator = Coordinator(
            self.config,
            self.artifacts,
            initial=self.initial,
            evaluate=lambda state: Evaluation(0.5, 1.0),
            observer=observer or SilentObserver(),
        )
        return RunThread(coordinator)

    def tasks(self, number: int) -> list[tuple[FakeDevice, RoundTask]]:
        return [(device, device.until_round(number)) for device in self.devices.values()]

    def refused(self) -> dict[str, str]:
        """The reason by device, of everything that was refused."""
        with closing(Store.open(self.config.run_path)) as store:
            return {refusal.device: refusal.reason for refusal in store.refusals()}

    def close(self) -> None:
        for device in self.devices.values():
            device.link.close()


@pytest.fixture
def fleet(secured: Authority, artifacts: Artifacts, initial: State, tmp_path: Path) -> Iterator[SecuredFleet]:
    fleet = SecuredFleet(secured, artifacts, initial, tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


def finish(fleet: SecuredFleet, run: RunThread) -> None:
    run.coordinator.interrupt()
    run.result()


def broken(value: float) -> Callable[[State], State]:
    def alter(state: State) -> State:
        bias = state["fc.bias"].copy()
        bias[1] = value
        return {**state, "fc.bias": bias}

    return alter


def too_dense(state: State) -> State:
    return {**state, "fc.weight": np.ones_like(state["fc.weight"])}


def negative_variance(state: State) -> State:
    return {**state, "bn.running_var": -np.ones_like(state["bn.running_var"])}


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (broken(float("nan")), "NaN or infinity"),
        (broken(float("inf")), "NaN or infinity"),
        (too_dense, "non-zero weights"),
        (negative_variance, "negative variance"),
    ],
    ids=["nan", "inf", "dense", "variance"],
)
def test_an_update_that_would_harm_the_mean_is_refused_with_its_reason(
    fleet: SecuredFleet, alter: Callable[[State], State], reason: str
) -> None:
    run = fleet.start()
    device, task = fleet.tasks(1)[0]
    verdict = device.deliver(task, alter(answer(device.name, 1, fleet.initial)))
    assert isinstance(verdict, Refused)
    assert reason in verdict.reason
    finish(fleet, run)
    assert reason in fleet.refused()[device.name]


def times(factor: float) -> Callable[[State], State]:
    return lambda state: {name: (tensor * np.float32(factor)).astype(np.float32) for name, tensor in state.items()}


def closed_model(fleet: SecuredFleet, order: tuple[str, ...], alter: Callable[[State], State], claim: int) -> State:
    """Return the model after a round in which d4 sends its update changed by `alter`, and claims `claim` samples."""
    run = fleet.start(rounds=1)
    tasks = {device.name: (device, task) for device, task in fleet.tasks(1)}
    for name in order:
        device, task = tasks[name]
        state = answer(name, 1, fleet.initial)
        if name == "d4":
            device.samples = claim
            state = alter(state)
        assert isinstance(device.deliver(task, state), Accepted), name
    run.result()
    shapes = fleet.artifacts.manifest.shapes
    return decode_frame((fleet.config.run_path / "model.frame").read_bytes(), shapes).state


@pytest.mark.parametrize(
    ("alter", "claim"),
    [(times(1), 10**9), (times(1000), 40), (times(1e30), 10**9)],
    ids=["claims", "moves far", "both"],
)
def test_a_member_of_four_cannot_move_the_model_beyond_the_bound(
    fleet: SecuredFleet, alter: Callable[[State], State], claim: int
) -> None:
    found = closed_model(fleet, NAMES, alter, claim)
    base, manifest = fleet.initial, fleet.artifacts.manifest
    honest = [(10 * number, answer(f"d{number}", 1, base)) for number in (1, 2, 3)]
    pulls = [(weight, change_norms(state, base, manifest)) for weight, state in honest]
    # The weights are 10, 20, 30 and 40. Subtract the mean of the others from the model to get d4's part.
    others, sent = average(honest), answer("d4", 1, base)
    counted = {
        name: np.where(sent[name] != 0, (100 * found[name] - 60 * others[name]) / 40, 0).astype(np.float32)
        for name in found
    }
    for name, norm in change_norms(counted, base, manifest).items():
        bound = RULES[DEFAULT_RULE].clip * max(weight * norms[name] for weight, norms in pulls)
        assert 40 * norm <= 1.01 * bound, name


def test_it_does_not_matter_whether_the_hostile_update_comes_first_or_last(fleet: SecuredFleet, tmp_path: Path) -> None:
    first = closed_model(fleet, ("d4", "d1", "d2", "d3"), times(1000), 10**9)
    fleet.config = msgspec.structs.replace(fleet.config, run_dir=str(tmp_path / "again"))
    last = closed_model(fleet, ("d3", "d2", "d1", "d4"), times(1000), 10**9)
    assert model_id(first) == model_id(last)


def test_what_was_cut_and_clipped_is_on_record_and_no_refusal(
    fleet: SecuredFleet, caplog: pytest.LogCaptureFixture
) -> None:
    closed_model(fleet, NAMES, times(1000), 10**9)
    with closing(Store.open(fleet.config.run_path)) as store:
        (adjusted,) = [adjustment for adjustment in store.adjustments() if adjustment.notable]
        assert (adjusted.round, adjusted.device, adjusted.samples, adjusted.weight) == (1, "d4", 10**9, 40)
        assert adjusted.clipped < 0.1
        assert str(adjusted).startswith("clipped to 0.0")
        assert "claims 1000000000 samples, counted for 40" in str(adjusted)
        assert store.metrics()[1]["cut_claims"] == 1
        assert store.metrics()[1]["clipped_devices"] >= 1
        assert store.refusals() == ()
        assert store.samples(1)["d4"] == 10**9
    for line in ("device d4 claims 1000000000 samples and counts for 40", "the update of device d4 is clipped to 0.0"):
        assert caplog.text.count(line) == 1


def altered_offer(device: FakeDevice, task: RoundTask, **changes: object) -> Offer:
    return device.sign(msgspec.structs.replace(device.offer_of(task, device.frame_of(task)), **changes))


def test_offers_for_another_model_run_or_size_are_refused(fleet: SecuredFleet) -> None:
    run = fleet.start()
    (first, task), (second, _), (third, _), (fourth, _) = fleet.tasks(1)
    huge = msgspec.structs.replace(first.offer_of(task, b"x" * 100).update, bytes=1 << 29)
    reasons = {}
    for device, changes, reason in (
        (first, {"base": "ab" * 32}, "starts from model"),
        (second, {"run": "r0"}, "for run r0"),
        (third, {"update": huge}, "at most"),
        (fourth, {"round": 7}, "round 7 is not open"),
    ):
        verdict = device.ask(altered_offer(device, task, **changes))
        assert isinstance(verdict, Refused)
        assert reason in verdict.reason
        reasons[device.name] = verdict.reason
    finish(fleet, run)
    assert fleet.refused() == reasons


def test_an_update_is_not_taken_twice_nor_in_another_round(fleet: SecuredFleet) -> None:
    run = fleet.start()
    tasks = fleet.tasks(1)
    replayed = altered_offer(*tasks[0])
    for device, task in tasks:
        assert isinstance(device.deliver(task), Accepted)
        other = device.ask(device.offer_of(task, device.frame_of(task, fleet.initial)))
        assert isinstance(other, Refused), "a second, different update in one round"
    device, task = fleet.tasks(2)[0]
    # A repeated update gets the same answer and does not count twice; offered for the next round, it is refused.
    assert isinstance(device.ask(replayed), Accepted)
    moved = device.sign(msgspec.structs.replace(replayed, round=2))
    assert isinstance(device.ask(moved), Refused)
    with closing(Store.open(fleet.config.run_path)) as store:
        assert len(store.accepted(1)) == len(NAMES)
        assert store.accepted(2) == {}
    # Sending its bytes under an offer for round 2 fails too: the frame says which round it is for.
    old = device.frame_of(tasks[0][1])
    honest = altered_offer(device, task)
    forged = device.sign(msgspec.structs.replace(honest, update=device.offer_of(task, old).update))
    verdict = device.ask(forged)
    assert isinstance(verdict, Grant)
    for index in range(forged.update.chunks):
        chunk = chunk_of(old, forged.update, index)
        device.link.publish(TOPICS.upload(device.name, forged.update.sha256, index), chunk)
    device.until(lambda: any(isinstance(reply, Refused) for reply in device.replies))
    finish(fleet, run)


def test_an_upload_that_never_ends_neither_stops_the_round_nor_goes_uncounted(fleet: SecuredFleet) -> None:
    run = fleet.start(deadline_s=15.0, rounds=1)
    (lazy, task), *others = fleet.tasks(1)
    frame = lazy.frame_of(task)
    offer = lazy.offer_of(task, frame)
    assert isinstance(lazy.ask(offer), Grant)
    lazy.link.publish(TOPICS.upload(lazy.name, offer.update.sha256, 0), chunk_of(frame, offer.update, 0))
    # Chunks that are not part of it are refused one by one.
    lazy.link.publish(TOPICS.upload(lazy.name, offer.update.sha256, 1), b"too short")
    for device, task in others:
        device.deliver(task)
    summary = run.result()
    assert summary.rounds[0].updates >= 1
    reasons = {refusal.reason for refusal in summary.refusals if refusal.device == lazy.name}
    assert any("not finished" in reason for reason in reasons), reasons
    assert any("has 9 bytes" in reason for reason in reasons), reasons


def test_a_tiny_frame_with_a_huge_name_is_refused_in_few_words_and_mutes_nobody(fleet: SecuredFleet) -> None:
    run = fleet.start(rounds=1)
    (hostile, task), *others = fleet.tasks(1)
    frame = large_name_frame(task)
    assert len(frame) < 500
    verdict = send(hostile, task, frame)
    assert isinstance(verdict, Refused)
    assert len(verdict.reason) <= MAX_TEXT
    for device, its_task in others:
        assert isinstance(device.deliver(its_task), Accepted)
    summary = run.result()
    assert summary.rounds[0].updates == len(others)
    assert (fleet.config.run_path / "run.sqlite").stat().st_size < 1 << 20


def test_a_member_that_offers_and_sends_nothing_does_not_keep_the_others_out(fleet: SecuredFleet) -> None:
    run = fleet.start(rounds=1, min_updates=3, deadline_s=12.0)
    (hostile, task), *others = fleet.tasks(1)
    honest = hostile.offer_of(task, hostile.frame_of(task))
    largest = max_update_bytes(fleet.artifacts.manifest)
    for number in range(20):
        update = msgspec.structs.replace(honest.update, sha256=f"{number:064x}", bytes=largest)
        offer = hostile.sign(msgspec.structs.replace(honest, update=update))
        hostile.link.publish(TOPICS.offer(hostile.name), encode(offer))
    for device, its_task in others:
        assert isinstance(device.deliver(its_task), Accepted)
    assert run.result().rounds[0].updates == len(others)


def test_thousands_of_different_lies_are_a_few_rows_and_a_few_lines(
    fleet: SecuredFleet, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    run = fleet.start(rounds=1, observer=CountingObserver(told))
    (hostile, task), *_ = fleet.tasks(1)
    offer = hostile.offer_of(task, hostile.frame_of(task))
    for number in range(2_000):
        lie = hostile.sign(msgspec.structs.replace(offer, base=f"{number:064x}"))
        hostile.link.publish(TOPICS.offer(hostile.name), encode(lie))
    verdict = hostile.ask(hostile.sign(msgspec.structs.replace(offer, base="f" * 64)))
    assert isinstance(verdict, Refused)
    hostile.until(lambda: sum(isinstance(reply, Refused) for reply in hostile.replies) >= 100)
    finish(fleet, run)
    with closing(Store.open(fleet.config.run_path)) as store:
        rows = [refusal for refusal in store.refusals() if refusal.device == hostile.name]
    assert len(rows) == 1
    assert rows[0].kind == "foreign"
    assert rows[0].count > 100
    assert len(told) <= TOLD_PER_MINUTE * 2


def test_what_a_member_has_the_broker_keep_is_cleared_and_counted(fleet: SecuredFleet) -> None:
    hostile = fleet.devices["d1"]
    # Publish before the coordinator starts, and while it runs.
    hostile.link.publish(TOPICS.upload("d1", "0" * 64, 0), b"x" * 100_000, retain=True)
    run = fleet.start()
    fleet.tasks(1)
    for index in range(1, 20):
        hostile.link.publish(TOPICS.upload("d1", "0" * 64, index), b"x" * 100_000, retain=True)
    hostile.link.publish(TOPICS.offer("d1"), b"x" * 100_000, retain=True)
    until_s = time.monotonic() + LIMIT_S
    while kept_by_broker(fleet.authority, "d1") and time.monotonic() < until_s:
        time.sleep(0.2)
    assert kept_by_broker(fleet.authority, "d1") == []
    finish(fleet, run)
    with closing(Store.open(fleet.config.run_path)) as store:
        assert sum(refusal.count for refusal in store.refusals() if refusal.kind == "kept") == 21


def kept_by_broker(authority: Authority, device: str) -> list[str]:
    """Return the device's topics with a retained message, except its status."""
    link = authority.link("looker")
    link.subscribe(f"{TOPICS.root}/dev/{device}/#")
    link.open()
    found = []
    try:
        while (message := link.receive(0.5)) is not None:
            if isinstance(message, Received) and message.retained and not message.topic.endswith("/status"):
                found.append(message.topic)
    finally:
        link.close()
    return found


class CountingObserver(SilentObserver):
    def __init__(self, told: list[str]) -> None:
        self._told = told

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        self._told.append(reason)


def test_a_revoked_device_counts_as_gone_and_what_it_said_before_is_refused(
    fleet: SecuredFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsyedge.coordinator.fleet.revoked_devices.REFRESH_S", 0.1)
    run = fleet.start(min_devices=4)
    tasks = dict(zip(NAMES, fleet.tasks(1), strict=True))
    # Revoke in the ledger only, so the broker still delivers messages, like those already on their way.
    with fleet.authority.ledger() as ledger:
        ledger.revoke("d4")
    device, task = tasks["d4"]
    until_s = time.monotonic() + LIMIT_S
    while fleet.refused().get("d4") != BANNED:
        assert time.monotonic() < until_s
        device.link.publish(TOPICS.offer("d4"), encode(altered_offer(device, task)))
        device.listen(0.2)
    revoke(fleet.authority, "d4")
    with closing(Store.open(fleet.config.run_path)) as store:
        assert "d4" not in store.accepted(1)
    finish(fleet, run)


def test_a_member_cannot_say_what_another_one_does(fleet: SecuredFleet) -> None:
    run = fleet.start()
    tasks = fleet.tasks(1)

    def progress(task: RoundTask, step: int) -> bytes:
        return encode(Progress(run=task.run, round=task.round, phase="train", step=step, steps=100))

    def said() -> dict[str, int]:
        reader = LiveReader.open(fleet.config.run_path)
        assert reader is not None
        with closing(reader):
            return {name: activity.step for name, activity in reader.devices().items()}

    (hostile, task), (victim, _), *_ = tasks
    for topic, step in ((TOPICS.progress(victim.name), 99), (TOPICS.progress(hostile.name), 1)):
        hostile.until(lambda topic=topic, step=step: hostile.link.tell(topic, progress(task, step)))  # type: ignore[misc]
    hostile.until(lambda: hostile.name in said())
    victim.until(lambda: victim.link.tell(TOPICS.progress(victim.name), progress(task, 5)))
    victim.until(lambda: victim.name in said())
    assert said() == {hostile.name: 1, victim.name: 5}
    finish(fleet, run)
