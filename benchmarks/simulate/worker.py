"""A worker of `--link memory`: plays one device after another as the hub hands out turns."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection

from sparsyedge.benchmarks.simulate.pipe import Done, Pipe, PipeLink, Turn, decode, encode
from sparsyedge.benchmarks.simulate.simulated_device import DeviceRoom, Setup
from sparsyedge.edge.commands import logs

__all__ = ["play_turns", "work"]


def work(connection: Connection, setup: Setup) -> None:
    """Take turns until the hub closes the pipe."""
    # Ctrl-C reaches the whole process group; ignore it here, since the hub stops its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.set_up()
    logs.name_lines(f"worker {os.getpid()}")
    threading.Thread(target=_end_with_parent, name="simulate-parent", daemon=True).start()
    play_turns(connection, setup)


def _end_with_parent() -> None:
    """End this process as soon as its parent is dead, also in the middle of a turn.

    It would finish the turn otherwise, and write the device's files while the resumed run plays the same device.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def play_turns(connection: Pipe, setup: Setup) -> None:
    """Take turns until the pipe is closed."""
    room = DeviceRoom(setup)
    try:
        while True:
            message = decode(connection.recv_bytes())
            # Skip messages for the previous device.
            if isinstance(message, Turn):
                _take_turn(room, message.device, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        room.close()


def _take_turn(room: DeviceRoom, device: str, connection: Pipe) -> None:
    agent, courier = room.agent(device, PipeLink(connection))
    courier.join()
    while courier.task is None:
        courier.listen()
    agent.answer()
    connection.send_bytes(encode(Done(device)))
