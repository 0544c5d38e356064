"""`--engine ray`: the workers are actors of a Ray cluster. The only import of ray.

Data and artifacts go to each node once, into a folder; frames of models and chunks of blobs go through Ray's object
store, which moves them to each node once. Everything that must outlive an actor stays in the run's folder here
(benchmarks/simulate/device_folders.py), so an actor that is lost costs its turn and nothing else.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import tempfile
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sparsyedge.benchmarks.simulate.device_folders import DeviceFolders, FileChanges
from sparsyedge.benchmarks.simulate.engine import Lost
from sparsyedge.benchmarks.simulate.node_facts import check_facts, facts_function, worker_count
from sparsyedge.benchmarks.simulate.pipe import Carry, Done, Message
from sparsyedge.benchmarks.simulate.remote_worker import (
    Begin,
    Broken,
    NodeStore,
    RemoteWorker,
    Sent,
    SharedCarry,
    decode_sent,
)
from sparsyedge.benchmarks.simulate.simulated_device import Setup
from sparsyedge.benchmarks.simulate.workers import ONE_THREAD, environment
from sparsyedge.edge.errors import ConfigError, RunError

__all__ = ["started_ray_workers"]

log = logging.getLogger(__name__)

START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 10.0
PIECE_BYTES = 64 << 20
# Below this, a copy in the call is cheaper than an object.
SHARED_FROM_BYTES = 16 << 10
SHARED_BYTES = 512 << 20
TRIES = 3
LONGEST_FOLDER = 40
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CONNECT_TRIES = 3


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with its store of data and artifacts."""

    id: str
    name: str
    slots: int
    """How many workers its cores allow."""
    free: int
    """How many of them no other run has now."""
    store: Any
    folder: str


class RayWorker:
    """An actor, and the messages that came from it."""

    def __init__(
        self, node: Node, setup: Setup, number: int, *, objects: SharedObjects, lost: Callable[[RayWorker], None]
    ) -> None:
        """`lost` is called once the actor has ended."""
        self.node = node
        self.device: str | None = None
        self.patterns: set[str] = set()
        self._objects = objects
        self._folders = DeviceFolders(Path(setup.devices_dir))
        self._lost = lost
        self._sent = 0
        self._received: deque[Sent] = deque()
        here = msgspec.structs.replace(
            setup, devices_dir=f"{node.folder}/worker-{number}", shares_dir=f"{node.folder}/shares"
        )
        options = {"num_cpus": setup.threads, "max_concurrency": 4, "runtime_env": {"env_vars": ONE_THREAD}}
        make = ray.remote(RemoteWorker).options(scheduling_strategy=_on(node.id), **options)
        self._actor = make.remote(msgspec.json.encode(here), f"{node.folder}/artifacts")
        self.pending = self._actor.collect.remote()

    def give_turn(self, device: str) -> None:
        self.device = device
        self.patterns.clear()
        turn = self._folders.read(device)
        frames = [self._objects.put(name, self._folders.shared_model(name, of=device)) for name in turn.models]
        self._tell(Begin(device, turn.files, turn.models, self._folders.shared_models()), *frames)

    def send(self, message: Message) -> None:
        match message:
            case Carry(topic, payload, retained) if len(payload) >= SHARED_FROM_BYTES:
                self._tell(SharedCarry(topic, retained), self._objects.put(topic, payload))
            case _:
                self._tell(message)

    def receive(self) -> Message | Lost | None:
        if not self._received:
            try:
                self._received.extend(map(decode_sent, ray.get(self.pending)))
            except RayActorError:
                self._lost(self)
                return None if self.device is None else Lost(self.device)
            self.pending = self._actor.collect.remote()
        match self._received.popleft():
            case FileChanges() as changes:
                if changes.device == self.device:
                    self._folders.apply(changes)
                return None
            case Broken(reason):
                raise RunError(f"a worker on node {self.node.name} failed while it was {self.device}: {reason}")
            case Done() as done:
                self.device = None
                self.patterns.clear()
                return done
            case message:
                return message

    @property
    def has_more(self) -> bool:
        """Whether `receive` need not wait."""
        return bool(self._received)

    def wait_until_up(self) -> None:
        """Return once the actor runs; raises RunError if it does not within a limit."""
        try:
            ray.get(self._actor.is_up.remote(), timeout=START_LIMIT_S)
        except GetTimeoutError as error:
            raise RunError(
                f"no worker could start on node {self.node.name} within {START_LIMIT_S:.0f} s; if other work holds its "
                f"cores, use fewer with --workers"
            ) from error
        except RayError as error:
            raise RunError(f"no worker could start on node {self.node.name}: {_first_line(error)}") from error

    def stop(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    def _tell(self, message: Begin | SharedCarry | Message, *objects: Any) -> None:
        self._actor.take.remote(self._sent, msgspec.msgpack.encode(message), *objects)
        self._sent += 1


class SharedObjects:
    """Bytes that many workers get, in Ray's object store; the latest are kept there."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, Any]] = OrderedDict()
        self._bytes = 0

    def put(self, name: str, content: bytes) -> Any:
        """A reference to `content`; the same one as long as it is kept under that name."""
        if name in self._kept:
            kept, reference = self._kept[name]
            if kept == content:
                self._kept.move_to_end(name)
                return reference
            self._bytes -= len(kept)
        reference = ray.put(content)
        self._kept[name] = (content, reference)
        self._kept.move_to_end(name)
        self._bytes += len(content)
        while self._bytes > SHARED_BYTES and len(self._kept) > 1:
            _, (dropped, _) = self._kept.popitem(last=False)
            self._bytes -= len(dropped)
        return reference


class RayWorkers:
    """All actors; one that is lost is replaced if its node lives."""

    def __init__(self, nodes: Sequence[Node], setup: Setup, count: int) -> None:
        self.all: list[RayWorker] = []
        self._setup = setup
        self._objects = SharedObjects()
        self._started = 0
        self._losses: Counter[str] = Counter()
        for node in _spread(nodes, count):
            self._start(node)

    def wait_until_up(self) -> None:
        """Return once all run."""
        for worker in self.all:
            worker.wait_until_up()

    def idle(self) -> RayWorker | None:
        return next((worker for worker in self.all if worker.device is None), None)

    @property
    def busy(self) -> bool:
        return any(worker.device is not None for worker in self.all)

    def ready(self, timeout_s: float) -> list[RayWorker]:
        if early := [worker for worker in self.all if worker.has_more]:
            return early
        found, _ = ray.wait([worker.pending for worker in self.all], timeout=timeout_s)
        return [worker for worker in self.all if worker.pending in found]

    def stop(self) -> None:
        for worker in self.all:
            worker.stop()

    def _start(self, node: Node) -> None:
        self.all.append(RayWorker(node, self._setup, self._started, objects=self._objects, lost=self._replace))
        self._started += 1

    def _replace(self, worker: RayWorker) -> None:
        """Go on without a worker; raises RunError if that makes no sense."""
        self.all.remove(worker)
        doing = worker.device or "idle"
        if worker.device is not None:
            self._losses[worker.device] += 1
            if self._losses[worker.device] == TRIES:
                raise RunError(
                    f"{TRIES} workers ended while they were {doing}, the last on node {worker.node.name}; if its "
                    f"memory ran out, use fewer with --workers"
                )
        if _lives(worker.node):
            log.warning("a worker on node %s ended while it was %s; another takes over", worker.node.name, doing)
            self._start(worker.node)
        else:
            log.warning("node %s is lost; a worker there was %s", worker.node.name, doing)
        if not self.all:
            raise RunError(
                f"no node of the Ray cluster is left, {worker.node.name} was the last; start the run again to resume it"
            )


@contextmanager
def started_ray_workers(address: str | None, setup: Setup, *, asked: int | None, at_most: int) -> Iterator[RayWorkers]:
    """Actors that live during the block, spread over the cluster; raises ConfigError if it is not fit for them."""
    with ExitStack() as stack:
        stack.enter_context(_connected(address))
        alive = [node for node in ray.nodes() if node["Alive"]]
        slots = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) // setup.threads for node in alive}
        idle = ray._private.state.available_resources_per_node()
        free = {node: int(idle.get(node, {}).get("CPU", 0)) // setup.threads for node in slots}
        names = {node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in alive}
        count = worker_count(asked, sum(slots.values()), threads=setup.threads)
        useful = [node for node, count in slots.items() if count]
        _check_software(useful, names)
        nodes = []
        for node in useful:
            store = ray.remote(NodeStore).options(num_cpus=0, scheduling_strategy=_on(node)).remote()
            folder = ray.get(store.folder.remote())
            nodes.append(Node(node, names[node], slots[node], free[node], store, folder))
            stack.callback(_remove, store)
        _hand_out(setup, nodes)
        workers = RayWorkers(nodes, setup, min(count, at_most))
        stack.callback(workers.stop)
        workers.wait_until_up()
        yield workers


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Join a cluster, or start one here; leaves neither processes nor files of its own behind."""
    with ExitStack() as stack:
        stack.enter_context(environment(QUIET if address else QUIET | _own_token()))
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            short = tempfile.gettempdir() if len(tempfile.gettempdir()) <= LONGEST_FOLDER else "/tmp"
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="se-", dir=short, ignore_cleanup_errors=True)
            )
            options |= {"address": "local", "_temp_dir": folder, "include_dashboard": False}
        else:
            ray._private.ray_constants.NUM_REDIS_GET_RETRIES = CONNECT_TRIES
        stack.enter_context(_own_signals())
        # Ray prints a cluster's bad news on stdout, where --json puts its document; we say ourselves what they mean.
        ray._private.worker.print_to_stdstream = lambda data, ignore_prefix: log.debug("%s", data.get("lines"))
        stack.callback(ray.shutdown)
        try:
            ray.init(**options)
        except (OSError, RayError, RuntimeError, ValueError) as error:
            where = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
            raise ConfigError(f"cannot {where}: {_reason(error)}") from error
        yield


def _own_token() -> dict[str, str]:
    """A password for a cluster of our own, unless the user has chosen; Ray would leave one in the user's home."""
    return {} if "RAY_AUTH_MODE" in os.environ else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for Ray's sockets, whose paths may have 107 characters."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) <= LONGEST_FOLDER else "/tmp"
    return tempfile.TemporaryDirectory(prefix="se-", dir=place, ignore_cleanup_errors=True)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our reaction to SIGTERM: Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _check_software(nodes: Sequence[str], names: dict[str, str]) -> None:
    """Raise ConfigError if a node runs another software than this machine."""
    facts = facts_function()
    ours = facts()
    ask = ray.remote(facts)
    for node in nodes:
        try:
            found = ray.get(ask.options(num_cpus=0, scheduling_strategy=_on(node)).remote(), timeout=START_LIMIT_S)
        except (RayError, GetTimeoutError) as error:
            raise RunError(f"node {names[node]} of the Ray cluster does not work: {_first_line(error)}") from error
        check_facts(names[node], found, ours)


def _hand_out(setup: Setup, nodes: Sequence[Node]) -> None:
    """Copy data and artifacts to each node, in pieces, so that the object store need not hold all."""
    places = {"shares": Path(setup.shares_dir), "artifacts": Path(setup.devices_dir) / "artifacts"}
    for place, folder in places.items():
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
            name = f"{place}/{path.relative_to(folder).as_posix()}"
            for start in range(0, max(1, len(content)), PIECE_BYTES):
                piece = ray.put(np.asarray(content[start : start + PIECE_BYTES]))
                ray.get([node.store.append.remote(name, piece) for node in nodes])


def _spread(nodes: Sequence[Node], count: int) -> list[Node]:
    """A node for each worker: one after the other, on free cores first; others may become free."""
    turns = range(max(node.slots for node in nodes))
    free = [node for turn in turns for node in nodes if turn < node.free]
    taken = [node for turn in turns for node in nodes if node.free <= turn < node.slots]
    return (free + taken)[:count]


def _lives(node: Node) -> bool:
    try:
        ray.get(node.store.folder.remote(), timeout=ANSWER_LIMIT_S)
    except (RayError, GetTimeoutError):
        return False
    return True


def _remove(store: Any) -> None:
    try:
        ray.get(store.remove.remote(), timeout=ANSWER_LIMIT_S)
    except (RayError, GetTimeoutError) as error:
        log.debug("a node's folder stays: %s", _first_line(error))


def _on(node: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _reason(error: Exception) -> str:
    """Why Ray refuses to start or join."""
    whole = f"{error} {error.__cause__ or ''}"
    if "InvalidAuthToken" in whole or "RAY_AUTH_TOKEN" in whole:
        return "it wants another token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its nodes"
    if "Version mismatch" in whole:
        return f"{' '.join(whole[whole.index('Version mismatch') :].split())[:300]}; install the same on every node"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    """What Ray says, without its pages of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
