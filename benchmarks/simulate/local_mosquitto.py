"""Starts a Mosquitto on loopback for `--link mqtt`, if the machine has one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsyedge.benchmarks.common.ports import free_port
from sparsyedge.benchmarks.common.processes import stop
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.errors import LinkError

__all__ = ["find_mosquitto", "started_mosquitto"]

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
POLL_S = 0.05
# Debian installs it in a folder that only root's PATH contains.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
# By default Mosquitto queues 1000 messages for a busy client and drops the rest; 0 lifts the limit.
CONFIG = "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"


def find_mosquitto(otherwise: str = "") -> str:
    """The path of Mosquitto; raises LinkError, which ends with the other move there is."""
    binary = shutil.which("mosquitto", path=SEARCH_PATH)
    if binary is None:
        raise LinkError(f"no Mosquitto on the PATH; install it (apt-get install mosquitto){otherwise}")
    return binary


@contextmanager
def started_mosquitto(directory: Path) -> Iterator[BrokerConfig]:
    """A broker that runs during the block, with config and log in `directory`; LinkError without Mosquitto."""
    binary = find_mosquitto(", or use --link memory")
    port = free_port()
    config, log = directory / "mosquitto.conf", directory / "mosquitto.log"
    config.write_text(CONFIG.format(port=port))
    with log.open("wb") as output:
        # Only the simulation gets Ctrl-C; it then stops its parts in order.
        process = subprocess.Popen(
            [binary, "-c", str(config)], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _await_listener(process, port, log)
        yield BrokerConfig(host="127.0.0.1", port=port)
    finally:
        stop(process, limit_s=STOP_LIMIT_S)


def _await_listener(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(POLL_S)
        else:
            return
    raise LinkError(f"Mosquitto does not listen on port {port}: {log.read_text(errors='replace')[-500:]}")
