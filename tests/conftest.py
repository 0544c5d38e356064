"""What the tests of several folders share: a real broker on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_S = 10.0
# Debian installs it where only root's PATH looks.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class Broker:
    """A Mosquitto that a test may stop and start again on the same port; it forgets everything in between."""

    def __init__(self, binary: str, folder: Path, port: int) -> None:
        self.port = port
        self._command = [binary, "-c", str(folder / "mosquitto.conf")]
        self._log = folder / "mosquitto.log"
        (folder / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        pytest.fail(f"Mosquitto does not listen on port {self.port}: {self._log.read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=START_S)


@pytest.fixture
def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def broker(free_port: int, tmp_path: Path) -> Iterator[Broker]:
    """A Mosquitto that lives for one test; absent, it fails the test in CI and skips it elsewhere."""
    binary = shutil.which("mosquitto", path=SEARCH_PATH)
    if binary is None:
        advice = "no Mosquitto on the PATH; install it with: sudo apt-get install mosquitto"
        if os.environ.get("CI") == "true":
            pytest.fail(advice)
        pytest.skip(advice)
    broker = Broker(binary, tmp_path, free_port)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def mosquitto(broker: Broker) -> int:
    """The port of a Mosquitto that lives for one test."""
    return broker.port
