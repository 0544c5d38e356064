"""The device agents of `--link mqtt`: a few processes with many agents each; every agent has its own connection.

The agents of a process share one holder and train one at a time: memory grows with processes, not with devices.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from sparsyedge.benchmarks.simulate.simulated_device import BOOT_ID, DeviceRoom, Setup
from sparsyedge.benchmarks.simulate.workers import ONE_THREAD, environment, signals_deferred
from sparsyedge.edge.commands import logs
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.device.courier import offline_status
from sparsyedge.edge.errors import LinkError, RunError
from sparsyedge.edge.protocol.mqtt import Link

__all__ = ["Hosts", "started_agents"]

STOP_LIMIT_S = 30.0
OPEN_LIMIT_S = 120.0
WATCH_S = 0.5


class Hosts:
    """The processes; `check` raises RunError if one has died."""

    def __init__(self, processes: list[BaseProcess]) -> None:
        self._processes = processes

    def check(self) -> None:
        for process in self._processes:
            if process.exitcode not in (None, 0):
                raise RunError(
                    f"a process of simulated devices ended with exit code {process.exitcode}; "
                    f"if the machine ran out of memory, use fewer with --workers"
                )

    @property
    def dead(self) -> bool:
        return any(process.exitcode not in (None, 0) for process in self._processes)


@contextmanager
def started_agents(count: int, setup: Setup, *, devices: Sequence[str], broker: BrokerConfig) -> Iterator[Hosts]:
    """All devices, spread over `count` processes that run during the block; leaves none behind."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for index in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=host, args=(theirs, setup, devices[index::count], broker), daemon=True)
            with environment(ONE_THREAD), signals_deferred():
                process.start()
                pipes.append(ours)
                processes.append(process)
            theirs.close()
        yield Hosts(processes)
    finally:
        for pipe in pipes:
            pipe.close()
        for started in processes:
            started.join(STOP_LIMIT_S)
            if started.is_alive():
                started.kill()
                started.join()
            started.close()


def host(connection: Connection, setup: Setup, devices: Sequence[str], broker: BrokerConfig) -> None:
    """Run these devices until the run finishes or the simulation closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.set_up()
    logs.name_lines(f"worker {os.getpid()}")
    room = DeviceRoom(setup)
    agents: list[Agent] = []
    threads = []
    try:
        for device in devices:
            agent, thread = _start(room, device, broker, setup.fleet)
            agents.append(agent)
            threads.append(thread)
        while any(thread.is_alive() for thread in threads) and not connection.poll(WATCH_S):
            pass
    finally:
        for agent in agents:
            agent.stop()
        for thread in threads:
            thread.join()
        room.close()


def _start(room: DeviceRoom, device: str, broker: BrokerConfig, fleet: str) -> tuple[Agent, threading.Thread]:
    will = (room.topics.status(device), offline_status(BOOT_ID))
    link = Link(broker.host, broker.port, identity=f"{fleet}-{device}", will=will)
    agent, courier = room.agent(device, link)
    courier.join()
    link.open(OPEN_LIMIT_S)

    def run() -> None:
        try:
            agent.run()
        except LinkError as error:
            logging.getLogger(__name__).error("device %s: %s", device, error)
        finally:
            link.close()

    thread = threading.Thread(target=run, name=device, daemon=True)
    thread.start()
    return agent, thread
