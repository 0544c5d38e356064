"""What gives simulated devices their turns, as the hub sees it: worker processes here, or actors of a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, Protocol

from sparsyedge.benchmarks.simulate.pipe import Message
from sparsyedge.benchmarks.simulate.simulated_device import Setup
from sparsyedge.benchmarks.simulate.workers import core_count, started_processes
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.installation import install_command

__all__ = ["Engine", "EngineKind", "Lost", "Worker", "Workers", "check_engine", "started_workers"]

ANSWER_LIMIT_S = 5.0

EngineKind = Literal["processes", "ray"]


@dataclass(frozen=True)
class Engine:
    """Where simulated devices train."""

    kind: EngineKind = "processes"
    address: str | None = None
    """Of a Ray cluster: `HOST:PORT`, or `auto` for the one that this machine is part of; None starts one here."""


@dataclass(frozen=True)
class Lost:
    """A worker has ended in the middle of this device's turn, and another must repeat it."""

    device: str


class Worker(Protocol):
    """Plays one device after another; messages to it never block the hub."""

    device: str | None
    """Whose turn it is."""
    patterns: set[str]
    """The topics that the device asked for."""

    def give_turn(self, device: str) -> None:
        """Begin a device's turn, in the state in which its last one left it."""

    def send(self, message: Message) -> None:
        """Queue a message."""

    def receive(self) -> Message | Lost | None:
        """The next message, None if it is of no interest; raises RunError if the run cannot go on."""


class Workers(Protocol):
    """All workers of an engine."""

    @property
    def all(self) -> Sequence[Worker]:
        """The workers that live."""

    @property
    def busy(self) -> bool:
        """Whether a device has its turn."""

    def idle(self) -> Worker | None:
        """An idle worker."""

    def ready(self, timeout_s: float) -> Sequence[Worker]:
        """The workers with something to receive; waits at most `timeout_s`."""


def check_engine(engine: Engine, *, link: str) -> None:
    """Raise ConfigError for a combination that does not exist, or without what it needs."""
    if engine.kind == "ray" and link != "memory":
        raise ConfigError(f"engine `ray` carries messages itself and cannot use link `{link}`; leave --link out")
    if engine.kind == "ray" and find_spec("ray") is None:
        raise ConfigError(f"engine `ray` needs Ray, which is not installed; run `{install_command('ray')}`")
    if engine.kind != "ray" and engine.address is not None:
        raise ConfigError(f"address {engine.address!r} is of a Ray cluster; add --engine ray, or leave it out")
    if engine.address not in (None, "auto"):
        _check_answers(engine.address)


def _check_answers(address: str) -> None:
    """Raise ConfigError unless somebody answers; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"address {address!r} is none of a Ray cluster; allowed are HOST:PORT and auto")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_LIMIT_S).close()
    except OSError as error:
        raise ConfigError(
            f"nobody answers at {address} ({error.strerror or error}); start Ray there with `ray start --head`, or "
            f"look at the address that it printed"
        ) from error


def started_workers(
    engine: Engine, setup: Setup, *, asked: int | None, at_most: int
) -> AbstractContextManager[Workers]:
    """Workers that live during the block: as many as asked for, by default one per core, and never above `at_most`."""
    if engine.kind == "ray":
        # Imported here: Ray is an extra, and takes a second to load.
        from sparsyedge.benchmarks.simulate.ray_engine import started_ray_workers

        return started_ray_workers(engine.address, setup, asked=asked, at_most=at_most)
    return started_processes(min(asked or core_count(), at_most), setup)
