"""Installs a release into the free slot, offline, and has it check itself; every program has a time limit.

The programs are stopped, not ended, while the device trains: an upgrade is never in the way of a round.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.protocol.releases import WheelSet
from sparsyedge.edge.text import one_line

__all__ = ["Program", "install"]

INSTALL_LIMIT_S = 1800.0
"""For one program; a Raspberry Pi Zero unpacks the wheels in some minutes."""
KEPT_OUTPUT_BYTES = 4000


class Program:
    """One program at a time that can be held: its clock stands still meanwhile."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._held = False

    def run(
        self, what: str, command: Sequence[str | Path], *, limit_s: float, environment: Mapping[str, str] | None = None
    ) -> Iterator[None]:
        """Run a program to its end; yields while it works. Raises SecurityError with its last line if it fails."""
        with tempfile.TemporaryFile() as output:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=_clean_environment() if environment is None else {**_clean_environment(), **environment},
                process_group=0,
            )
            self._held = False
            worked_s, looked_s = 0.0, time.monotonic()
            try:
                while process.poll() is None:
                    self._release()
                    looked_s = time.monotonic()
                    yield
                    if self._held:
                        continue
                    worked_s += time.monotonic() - looked_s
                    if worked_s > limit_s:
                        raise SecurityError(f"{what} did not end within {limit_s:g} s")
            finally:
                self._end(process)
            if process.returncode:
                raise SecurityError(f"{what} failed: {_last_line(output.fileno())}")

    def hold(self) -> None:
        """Stop the program until its run goes on."""
        if self._process is not None and not self._held and self._process.poll() is None:
            self._held = True
            self._signal(self._process, signal.SIGSTOP)

    def _release(self) -> None:
        if self._held and self._process is not None:
            self._held = False
            self._signal(self._process, signal.SIGCONT)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        if process.poll() is None:
            self._signal(process, signal.SIGKILL)
            process.wait()

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        # The whole group: pip starts programs too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def install(program: Program, wheels: WheelSet, files: Path, slot: Path) -> Iterator[None]:
    """Make an environment in `slot` from verified files (`files` has them by hash); yields while it works.

    As cards do it: pip from its own wheel, no index, no build, nothing but what the lock file names by its hash.
    """
    with tempfile.TemporaryDirectory(dir=slot.parent, prefix=".named-") as folder:
        named = Path(folder)
        for file in wheels.files:
            (named / file.name).symlink_to(files / file.sha256)
        pip = next((file.name for file in wheels.files if file.name.startswith("pip-")), None)
        lock = next((file.name for file in wheels.files if file.name.endswith(".lock")), None)
        if pip is None or lock is None:
            raise SecurityError(
                "the release has no pip or no lock file; make its wheelhouse again with `flash wheelhouse`"
            )
        yield from program.run(
            "making the second environment",
            [_base_python(), "-I", "-m", "venv", "--without-pip", slot],
            limit_s=INSTALL_LIMIT_S,
        )
        yield from program.run(
            "installing the wheels",
            [
                *(slot / "bin" / "python", "-P", "-m", "pip", "install", "--quiet", "--no-index", "--no-compile"),
                *("--no-cache-dir", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"),
                *("--find-links", named, "--requirement", named / lock),
            ],
            limit_s=INSTALL_LIMIT_S,
            environment={"PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": str(named / pip)},
        )


def _base_python() -> str:
    """The Python that environments are made from: a slot must not lean on another slot."""
    return getattr(sys, "_base_executable", "") or sys.executable


def _clean_environment() -> dict[str, str]:
    """This process's environment without what would lead pip or Python elsewhere, or systemd to the wrong process."""
    dropped = ("PIP_", "PYTHON", "NOTIFY_SOCKET", "WATCHDOG_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _last_line(output: int) -> str:
    size = os.fstat(output).st_size
    text = os.pread(output, KEPT_OUTPUT_BYTES, max(0, size - KEPT_OUTPUT_BYTES)).decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "it said nothing"
