"""Twenty rounds with ten members of a secured fleet; one member attacks in every way we know.

`make test-hostile` runs it and prints what is left of the run; docs/explanation/security.md has the figures.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fixtures.hostile_frames import large_name_frame, send
from fixtures.scripted_fleet import TOPICS, FakeDevice, RunThread, answer
from fixtures.secured import make_member

from sparsyedge.coordinator.authority.artifact_signing import sign
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.mosquitto import PID_NAME
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import Evaluation, RoundRecord, RunSummary
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.service import Coordinator
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.messages import Accepted, RoundTask, encode
from sparsyedge.edge.tensors import State

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow, pytest.mark.timeout(1200)]

ROUNDS = 20
HONEST = tuple(f"d{number}" for number in range(1, 10))
HOSTILE = "x5"
NAMES = (*HONEST, HOSTILE)
TRAINING_S = 2.0
FASTER = 20
"""Speed-up of the coordinator's clock: a round of three seconds counts as a minute, which is short for a real one."""
LARGEST = 130_000
"""Bytes; just under the largest update that a device may offer."""

Attack = Callable[[FakeDevice, RoundTask], None]


def mute(device: FakeDevice, task: RoundTask) -> None:
    send(device, task, large_name_frame(task))


def starve(device: FakeDevice, task: RoundTask) -> None:
    """Offer the largest update again and again, under another hash each time, and send nothing."""
    honest = device.offer_of(task, device.frame_of(task))
    for number in range(50):
        update = msgspec.structs.replace(honest.update, sha256=f"{number:064x}", bytes=LARGEST)
        offer = device.sign(msgspec.structs.replace(honest, update=update))
        device.link.publish(TOPICS.offer(device.name), encode(offer))


def overwrite(device: FakeDevice, task: RoundTask) -> None:
    device.samples = 10**9
    state = {name: 100 * tensor for name, tensor in answer(device.name, task.round, device.initial).items()}
    device.deliver(task, state)
    device.samples = 50


def send_nan(device: FakeDevice, task: RoundTask) -> None:
    state = answer(device.name, task.round, device.initial)
    device.deliver(task, {**state, "fc.bias": np.full_like(state["fc.bias"], np.nan)})


def fill_the_broker(device: FakeDevice, task: RoundTask) -> None:
    for index in range(400):
        device.link.publish(TOPICS.upload(device.name, "0" * 64, index), b"x" * 1_000_000, retain=True)


def lie(device: FakeDevice, task: RoundTask) -> None:
    offer = device.offer_of(task, device.frame_of(task))
    for number in range(300):
        claim = device.sign(msgspec.structs.replace(offer, base=f"{number:064x}"))
        device.link.publish(TOPICS.offer(device.name), encode(claim))


def say_nothing(device: FakeDevice, task: RoundTask) -> None:
    """Take the task, and keep the others waiting."""


ATTACKS: tuple[Attack, ...] = (mute, starve, overwrite, send_nan, fill_the_broker, lie, say_nothing)


def answer_as_asked(device: FakeDevice, task: RoundTask) -> None:
    device.deliver(task)


def take_part(device: FakeDevice, number: int, attack: Attack) -> None:
    task = device.until_round(number)
    if device.name in task.cohort:
        attack(device, task)


class Waits(SilentObserver):
    """Counts the seconds from the last update of each round to its end."""

    def __init__(self) -> None:
        self.seconds = self._since_s = 0.0

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        self._since_s = time.monotonic()

    def round_closed(self, record: RoundRecord) -> None:
        self.seconds += time.monotonic() - self._since_s


def play(
    authority: Authority, artifacts: Artifacts, initial: State, folder: Path, *, attacked: bool
) -> tuple[RunSummary, Waits]:
    """A whole run that learns its deadlines; nine devices answer every round, the tenth answers too or attacks."""
    config = RunConfig(
        name="r1",
        artifacts=str(artifacts.directory),
        run_dir=str(folder / "run"),
        dataset="none",
        fleet="lab",
        rounds=ROUNDS,
        cohort_size=len(NAMES),
        min_updates=len(HONEST),
        codec="lossless",
        authority=str(authority.folder),
    )
    port = authority.settings.port
    devices = {name: FakeDevice(port, name, initial, make_member(authority, name, folder / name)) for name in NAMES}
    waits = Waits()
    coordinator = Coordinator(
        config,
        artifacts,
        initial=initial,
        evaluate=lambda state: Evaluation(0.5, 1.0),
        observer=waits,
        clock=lambda: FASTER * time.monotonic(),
    )
    for device in devices.values():
        device.listen(0.5)
    run = RunThread(coordinator)
    try:
        for number in range(1, ROUNDS + 1):
            attack = ATTACKS[number % len(ATTACKS)] if attacked else answer_as_asked
            tenth = threading.Thread(target=take_part, args=(devices[HOSTILE], number, attack))
            tenth.start()
            for name in HONEST:
                devices[name].until_round(number)
            time.sleep(TRAINING_S)
            for name in HONEST:
                verdict = devices[name].deliver(devices[name].until_round(number))
                assert isinstance(verdict, Accepted), verdict
            tenth.join()
        return run.result(), waits
    finally:
        coordinator.interrupt()
        for device in devices.values():
            device.link.close()


def slowest(run: RunSummary) -> list[RoundRecord]:
    return sorted(run.rounds, key=lambda record: -record.seconds)[:5]


def describe(record: RoundRecord) -> str:
    attack = ATTACKS[record.round % len(ATTACKS)].__name__
    return f"{record.seconds / FASTER:.1f} s in round {record.round} ({attack})"


def peak_mb(authority: Authority) -> float:
    """The most memory that the broker has had."""
    pid = (authority.folder / PID_NAME).read_text().strip()
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1000


def test_one_hostile_member_of_ten_costs_little_time_and_no_honest_update(
    secured: Authority, artifacts: Artifacts, initial: State, tmp_path: Path
) -> None:
    signed = sign(secured, artifacts.directory)
    clean, _ = play(secured, signed, initial, tmp_path / "clean", attacked=False)
    attacked, waits = play(secured, signed, initial, tmp_path / "attacked", attacked=True)
    times = [statistics.mean(record.seconds for record in run.rounds) / FASTER for run in (clean, attacked)]
    with closing(Store.open(tmp_path / "attacked" / "run")) as store:
        accepted = [store.accepted(number) for number in range(1, ROUNDS + 1)]
    honest = sum(device in HONEST for devices in accepted for device in devices)
    taken = sum(HOSTILE in devices for devices in accepted)
    print(f"\nrounds closed: {len(attacked.rounds)} of {ROUNDS}")
    print(f"honest updates averaged: {honest} of {len(HONEST) * ROUNDS}, and {taken} hostile ones")
    print(f"mean round: {times[0]:.3f} s clean, {times[1]:.3f} s attacked, {times[1] / times[0]:.2f}x")
    waited = waits.seconds / (ROUNDS * times[0])
    print(f"waited in vain: {waited:.2f}x, the rest is what the attacks keep the machine busy with")
    print("the longest: " + ", ".join(describe(record) for record in slowest(attacked)))
    kinds = sorted({refusal.kind for refusal in attacked.refusals})
    refused = sum(refusal.count for refusal in attacked.refusals)
    print(f"refused: {refused} in {len(attacked.refusals)} rows: {', '.join(kinds)}")
    print(f"the broker's memory: {peak_mb(secured):.0f} MB at most")
    assert refused > 500
    assert len(attacked.rounds) == ROUNDS
    assert honest == len(HONEST) * ROUNDS
    # Do not check the total time: 400 MB in three rounds take longer if the machine is busy.
    assert waited <= 0.5
