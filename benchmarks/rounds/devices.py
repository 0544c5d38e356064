"""Devices that do everything but train: they join, wait for a round, offer an update and upload it like real ones.

Each has its own connection and courier. Each process prepares a few variants of a pruned model and sends those.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from sparsyedge.edge.device.courier import Abandoned, Courier, Member, offline_status
from sparsyedge.edge.errors import LinkError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Accepted, Offer, Report, RoundTask, Topics
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.tensors import State
from sparsyedge.edge.wire.frame import encode_frame

__all__ = ["LoadedDevice", "Variants", "host"]

VARIANTS = 4
OPEN_LIMIT_S = 120.0
CONNECT_PAUSE_S = 0.01
STACK_BYTES = 512 * 1024
SAMPLES = 100


class Variants:
    """A few updates for round 1, and their frames."""

    def __init__(self, artifacts: Artifacts) -> None:
        manifest = artifacts.manifest
        self._prunable = manifest.prunable
        start = read_initial_state(artifacts)
        pruned = prune_global(start, manifest.prunable, manifest.method.sparsity)
        self._states: list[State] = [_moved(pruned, seed) for seed in range(VARIANTS)]
        self._lock = threading.Lock()
        self._frames: dict[tuple[str, int, str, int], bytes] = {}

    def frame(self, task: RoundTask, number: int) -> bytes:
        """The update of a device, by its number."""
        variant = number % VARIANTS
        key = (task.run, task.round, task.model_id, variant)
        with self._lock:
            if key not in self._frames:
                self._frames[key] = encode_frame(
                    self._states[variant],
                    run=task.run,
                    round_number=task.round,
                    base_id=task.model_id,
                    prunable=self._prunable,
                ).frame
            return self._frames[key]


def _moved(state: State, seed: int) -> State:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(tensor * (1 + 0.01 * rng.random(tensor.shape, dtype=np.float32)), dtype=np.float32)
        for name, tensor in state.items()
    }


@dataclass
class LoadedDevice:
    """One device of the benchmark, in its own thread."""

    name: str
    number: int
    port: int
    fleet: str
    variants: Variants
    over: threading.Event
    seconds: float | None = None
    """Seconds from the first offer to the confirmation that the update is recorded."""
    answered_again: int = 0
    problem: str = ""

    def run(self) -> None:
        member = Member(
            device=self.name, topics=Topics(self.fleet), boot_id=uuid.uuid4().hex, software="bench", samples=SAMPLES
        )
        will = (member.topics.status(self.name), offline_status(member.boot_id))
        link = Link("127.0.0.1", self.port, identity=f"{self.fleet}-{self.name}", will=will)
        courier = Courier(link, member)
        courier.join()
        try:
            link.open(OPEN_LIMIT_S)
            self._take_part(courier)
        except (LinkError, Abandoned) as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            link.close()

    def _take_part(self, courier: Courier) -> None:
        while not self.over.is_set() and (courier.task is None or courier.task.state != "open"):
            courier.listen()
        task = courier.task
        if task is None or self.name not in task.cohort:
            return
        frame = self.variants.frame(task, self.number)
        offer = self._offer(task, frame)
        started_s = time.monotonic()
        verdict = courier.deliver(offer, frame, wanted=lambda: not self.over.is_set())
        if not isinstance(verdict, Accepted):
            self.problem = verdict.reason
            return
        self.seconds = time.monotonic() - started_s
        # Send the same update again, as after a lost answer: the coordinator must answer and not count it twice.
        if isinstance(courier.deliver(offer, frame, wanted=lambda: not self.over.is_set()), Accepted):
            self.answered_again += 1
        courier.report(offer.report)

    def _offer(self, task: RoundTask, frame: bytes) -> Offer:
        report = Report(
            run=task.run,
            round=task.round,
            phases={"train": PhaseCost(0.0, None)},
            energy_source="none",
            energy_kind="none",
            bytes_down=0,
            bytes_up=len(frame),
            steps=0,
            loss=0.0,
            peak_rss_mb=0.0,
            pid=0,
        )
        update = blob_of(frame, chunk_bytes=task.model.chunk_bytes)
        return Offer(run=task.run, round=task.round, base=task.model_id, update=update, samples=SAMPLES, report=report)


def host(connection: Connection, directory: str, port: int, fleet: str, names: Sequence[tuple[int, str]]) -> None:
    """Play these devices until all have an answer or the pipe closes; sends back what each observed."""
    variants = Variants(Artifacts.load(Path(directory)))
    over = threading.Event()
    devices = [LoadedDevice(name, number, port, fleet, variants, over) for number, name in names]
    threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=device.run, name=device.name, daemon=True) for device in devices]
    connection.send_bytes(b"ready")
    connection.recv_bytes()
    for thread in threads:
        thread.start()
        time.sleep(CONNECT_PAUSE_S)
    while any(thread.is_alive() for thread in threads) and not connection.poll(0.5):
        pass
    over.set()
    for thread in threads:
        thread.join()
    connection.send_bytes(json.dumps(_results(devices)).encode())


def _results(devices: Sequence[LoadedDevice]) -> list[tuple[str, float | None, int, str]]:
    return [(device.name, device.seconds, device.answered_again, device.problem) for device in devices]
