"""What a message costs the coordinator's leader: `python -m sparsyedge.benchmarks.rounds.leader_costs`.

A real leader with a real store leads one round. The channel is a queue in the same thread, behind which devices do
nothing but answer, with an update of a few hundred bytes. So what is left is the work per message: it must not grow
with the number of devices.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sparsyedge.benchmarks.common.number_arguments import positive
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.leader import Leader
from sparsyedge.coordinator.model.run_model import open_model
from sparsyedge.coordinator.record.observer import LogObserver
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.model.artifacts import LAST_WITH_API_FILES, Artifacts, File, Manifest, Parameter
from sparsyedge.edge.model.methods import MethodConfig, method_of
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.native import ABI_VERSION
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.channel import Connected, Event, Health, Received
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, DeviceStatus, Offer, Report, RoundTask, decode, encode
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.tensors import State, dense_bytes, model_id
from sparsyedge.edge.wire.frame import encode_frame

__all__ = ["Costs", "main", "make_parser", "measure"]

FLEET, RUN = "bench", "leader"
WEIGHT, BIAS = "fc.weight", "fc.bias"
SAMPLES = 100


@dataclass(frozen=True)
class Costs:
    """Microseconds per device: to take in its status, and to take its update from the offer to the last report.

    `update_cpu_us` is what the processor worked for that; the rest is waiting, mostly for the disk.
    """

    devices: int
    status_us: float
    update_us: float
    update_cpu_us: float
    accepted: int


class Fleet:
    """A channel and the devices behind it; `accepted` says how many of them were told so."""

    def __init__(self, devices: int, state: State, *, interrupted: threading.Event) -> None:
        # The last one never answers.
        self._names = [f"device-{number:05d}" for number in range(devices + 1)]
        self._answers = devices
        self._state = state
        self._topics = Topics(FLEET)
        self._interrupted = interrupted
        self._inbox: deque[Event] = deque([Connected()])
        self._update = self._report = b""
        self._sha256 = ""
        self.joined_s = self.opened_s = self.ended_s = 0.0
        self.cpu_s = 0.0
        self.accepted = self.reported = 0

    @property
    def chunk_bytes(self) -> int:
        return CHUNK_BYTES

    def open(self, timeout_s: float = 10.0) -> None:
        """All devices come at once."""
        status = encode(DeviceStatus(state="online", boot_id="boot", samples=SAMPLES, software="bench"))
        self._inbox.extend(Received(self._topics.status(name), status, True) for name in self._names)
        self.joined_s = time.perf_counter()

    def close(self) -> None:
        """Nothing to close."""

    def subscribe(self, pattern: str, *, as_published: bool = False, latest: bool = False) -> None:
        """Everything in the queue is for the coordinator."""

    def unsubscribe(self, pattern: str) -> None:
        """Everything in the queue is for the coordinator."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        if topic == self._topics.round:
            if payload and not self.opened_s:
                self._begin(decode(payload, RoundTask))
            return
        if not topic.endswith("/reply"):
            return
        device = topic.split("/")[-2]
        if b'"grant"' in payload[:20]:
            self._inbox.append(Received(self._topics.upload(device, self._sha256, 0), self._update, False))
        elif b'"accepted"' in payload[:20]:
            self.accepted += 1
            self._inbox.append(Received(self._topics.report(device), self._report, False))

    def receive(self, timeout_s: float) -> Event | None:
        event = self._inbox.popleft() if self._inbox else None
        if isinstance(event, Received) and event.topic.endswith("/report"):
            self.reported += 1
        elif event is None and self.reported == self._answers and not self._interrupted.is_set():
            self.ended_s = time.perf_counter()
            self.cpu_s += time.process_time()
            self._interrupted.set()
        return event

    def health(self) -> Health:
        return Health(len(self._inbox))

    def _begin(self, task: RoundTask) -> None:
        made = encode_frame(self._state, run=RUN, round_number=1, base_id=task.model_id, prunable=[WEIGHT])
        blob = blob_of(made.frame)
        report = Report(
            run=RUN,
            round=1,
            phases={"train": PhaseCost(1.0, None), "prune": PhaseCost(0.1, None)},
            energy_source="none",
            energy_kind="none",
            bytes_down=0,
            bytes_up=blob.bytes,
            steps=1,
            loss=0.5,
            peak_rss_mb=1.0,
            pid=1,
        )
        offer = encode(Offer(run=RUN, round=1, base=task.model_id, update=blob, samples=SAMPLES, report=report))
        self._update, self._report, self._sha256 = made.frame, encode(report), blob.sha256
        self._inbox.extend(Received(self._topics.offer(name), offer, False) for name in self._names[: self._answers])
        self.opened_s = time.perf_counter()
        self.cpu_s -= time.process_time()


def measure(devices: int, folder: Path) -> Costs:
    """Lead a round of that many devices in `folder`, until all of them have reported."""
    state: State = {
        WEIGHT: np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(4, 16),
        BIAS: np.zeros(4, dtype=np.float32),
    }
    artifacts = _artifacts(folder / "artifacts", state)
    config = RunConfig(
        name=RUN,
        fleet=FLEET,
        artifacts=str(artifacts.directory),
        run_dir=str(folder / "run"),
        dataset="digits",
        rounds=2,
        # A silent device keeps the round open: closing it costs once per round, and is another benchmark.
        cohort_size=devices + 1,
        min_updates=max(1, devices // 2),
        deadline_s=86_400.0,
    )
    interrupted = threading.Event()
    pruned = prune_global(state, [WEIGHT], artifacts.manifest.method.sparsity)
    fleet = Fleet(devices, pruned, interrupted=interrupted)
    made = Store.create(config.run_path, name=RUN, fleet=FLEET, rounds=2, dense_bytes=dense_bytes(state), config="{}")
    with closing(made) as store:
        model = open_model(config, artifacts, state, store=store, evaluate=lambda state: Evaluation(0.5, 1.0))
        leader = Leader(
            config,
            artifacts,
            link=fleet,
            store=store,
            model=model,
            observer=LogObserver(),
            interrupted=interrupted,
        )
        gc.collect()
        fleet.open()
        leader.lead()
        accepted = len(store.accepted(1))
    return Costs(
        devices,
        round(1e6 * (fleet.opened_s - fleet.joined_s) / devices, 1),
        round(1e6 * (fleet.ended_s - fleet.opened_s) / devices, 1),
        round(1e6 * fleet.cpu_s / devices, 1),
        accepted,
    )


def _artifacts(directory: Path, state: State) -> Artifacts:
    """Artifacts that nobody trains with."""
    directory.mkdir(parents=True)
    content = b"checkpoint"
    (directory / "checkpoint").write_bytes(content)
    manifest = Manifest(
        version=LAST_WITH_API_FILES,
        ops_abi=ABI_VERSION,
        model="linear",
        width=1,
        classes=4,
        input_shape=(16, 1, 1),
        method=method_of(MethodConfig()),
        seed=0,
        opset=17,
        made_with={},
        parameters=tuple(
            Parameter(name, tensor.shape, trainable=True, prunable=name == WEIGHT) for name, tensor in state.items()
        ),
        batch_norms=(),
        batch_norm_momentum=0.9,
        initial_model=model_id(state),
        files={"checkpoint": File("checkpoint", hashlib.sha256(content).hexdigest(), len(content))},
    )
    artifacts = Artifacts(directory, manifest)
    artifacts.save_manifest()
    return artifacts


def main(argv: Sequence[str]) -> int:
    """The command line of this module; exit code 1 if an update was lost."""
    arguments = make_parser().parse_args(argv)
    results = []
    for devices in arguments.devices:
        with tempfile.TemporaryDirectory(prefix="sparsyedge-leader-") as folder:
            results.append(measure(devices, Path(folder)))
        if not arguments.json:
            print(_line(results[-1]))
    if arguments.json:
        print(json.dumps([asdict(costs) for costs in results]))
    return 0 if all(costs.accepted == costs.devices for costs in results) else 1


def _line(costs: Costs) -> str:
    return (
        f"{costs.devices:>7} devices: {costs.status_us:8.1f} us per status, {costs.update_us:8.1f} per update, "
        f"{costs.update_cpu_us:8.1f} of it work"
    )


def make_parser() -> Parser:
    parser = Parser(prog="python -m sparsyedge.benchmarks.rounds.leader_costs", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--devices", type=positive, nargs="+", default=[100, 1_000, 10_000], help="devices of each round, in this order"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
