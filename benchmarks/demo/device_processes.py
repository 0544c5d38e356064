"""Device processes on this machine: real `sparsyedge edge` processes, each with its own config, folder and log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import tomli_w

from sparsyedge.benchmarks.common.processes import stop, watched
from sparsyedge.edge.config import DeviceConfig
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import write_atomically

__all__ = ["DeviceProcess", "Fleet"]

STOP_LIMIT_S = 10.0
LOG_TAIL_LINES = 5


@dataclass(frozen=True)
class DeviceProcess:
    """One device: its config, its log and its process."""

    id: str
    log: Path
    process: subprocess.Popen[bytes]


class Fleet:
    """Devices that run during the `with` block; leaves none behind."""

    def __init__(self, configs: list[DeviceConfig], directory: Path) -> None:
        self._configs = configs
        self._directory = directory
        self.devices: list[DeviceProcess] = []

    def __enter__(self) -> Self:
        for config in self._configs:
            self.devices.append(_start(config, self._directory / config.id))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Devices end by themselves when the run finishes; the rest we ask to stop, then kill.
        limit_s = STOP_LIMIT_S if error is None else 0.0
        for device in self.devices:
            _end(device.process, patience_s=limit_s)

    def check(self) -> None:
        """Raise RunError, with the end of the log, if a device has died."""
        for device in self._dead():
            tail = "\n".join(device.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
            raise RunError(
                f"device {device.id} ended with exit code {device.process.returncode}; the end of {device.log}:\n{tail}"
            )

    @contextmanager
    def watched(self, on_death: Callable[[], None]) -> Iterator[None]:
        """During the block, call `on_death` once, from a separate thread, when a device dies."""
        with watched(self._dead, on_death):
            yield

    def _dead(self) -> list[DeviceProcess]:
        return [device for device in self.devices if device.process.poll() not in (None, 0)]


def _start(config: DeviceConfig, directory: Path) -> DeviceProcess:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "device.toml"
    write_atomically(path, tomli_w.dumps(_as_toml(config)).encode())
    log = directory / "device.log"
    # One thread per device: numpy's own threads would compete with the other devices for the cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sparsyedge.edge", "--config", str(path), "--until-finished"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            # Only this process gets Ctrl-C; it then stops the devices in order.
            start_new_session=True,
        )
    return DeviceProcess(config.id, log, process)


def _as_toml(config: DeviceConfig) -> dict[str, Any]:
    """The config as TOML; leaves out None, since TOML has no null."""

    def clean(table: dict[str, Any]) -> dict[str, Any]:
        return {
            key: clean(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None
        }

    return clean(msgspec.to_builtins(config))


def _end(process: subprocess.Popen[bytes], *, patience_s: float) -> None:
    try:
        process.wait(patience_s)
        return
    except subprocess.TimeoutExpired:
        stop(process, limit_s=STOP_LIMIT_S)
