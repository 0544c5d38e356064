"""Runs the user's command when the device's model changes: in a thread of its own, with a time limit.

The command runs as the device's user, without a shell. It never holds up training, and a failure is only a warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparsyedge.edge.text import one_line

__all__ = ["ModelHook"]

log = logging.getLogger(__name__)

OUTPUT_BYTES = 4096
"""How much of a command's output is logged; the rest is read and dropped, so the command never blocks on it."""
OUTPUT_LINES = 20
READ_BYTES = 65536
TICK_S = 0.2
GRACE_S = 2.0
"""How long a command has to end after SIGTERM."""
PRIVATE_VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})
"""Between the device and its service manager: the command must not speak for the device."""


class _Change(NamedTuple):
    """A change that the command is to hear of."""

    variables: dict[str, str]
    begin: Callable[[], None]


class ModelHook:
    """At most one run of the command at a time; if the model changes meanwhile, the latest change is next."""

    def __init__(self, command: Sequence[str], *, limit_s: float) -> None:
        """`command` is a program and its arguments."""
        self._command = tuple(command)
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._next: _Change | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def is_waiting(self) -> bool:
        """Whether a change waits for the command to end."""
        with self._lock:
            return self._next is not None

    def start(self, variables: Mapping[str, str], *, begin: Callable[[], None] = lambda: None) -> None:
        """Have the command run soon, with these variables in its environment; calls `begin` right before it runs."""
        with self._lock:
            self._next = _Change(dict(variables), begin)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="on_model", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait for the command to end, which takes no longer than its limit."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        """End the command now."""
        self._stopped.set()
        self.finish()

    def _work(self) -> None:
        while True:
            with self._lock:
                change, self._next = self._next, None
                if change is None or self._stopped.is_set():
                    self._thread = None
                    return
            try:
                # Before it runs: a command that takes the device down with it must not run again and again.
                change.begin()
                self._run(change.variables)
            except (OSError, ValueError) as error:  # a zero byte in an argument is a ValueError
                log.warning("on_model: cannot run %s: %s", one_line(self._command[0]), error)

    def _run(self, variables: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in PRIVATE_VARIABLES}
        started_s = time.monotonic()
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**kept, **variables},
            # A group of its own, so that its children end with it.
            start_new_session=True,
        )
        with process:
            output, dropped = self._follow(process, until_s=started_s + self._limit_s)
            in_time = process.poll() is not None
            _end_group(process)
        seconds = time.monotonic() - started_s
        for line in output.decode(errors="replace").splitlines()[:OUTPUT_LINES]:
            log.info("on_model: %s", one_line(line))
        if dropped:
            log.info("on_model: %d more bytes of output are not shown", dropped)
        if not in_time:
            why = "this device stops" if self._stopped.is_set() else f"it took longer than {self._limit_s:g} s"
            log.warning("on_model: %s was ended: %s", self._command[0], why)
        elif process.returncode:
            log.warning("on_model: %s failed with code %d", self._command[0], process.returncode)
        else:
            log.info("on_model: %s is done after %.1f s", self._command[0], seconds)

    def _follow(self, process: subprocess.Popen[bytes], *, until_s: float) -> tuple[bytes, int]:
        """Read the output until the command ends, its time is up or the device stops; returns its beginning.

        Also returns how many bytes were dropped.
        """
        assert process.stdout is not None
        output, dropped = bytearray(), 0
        os.set_blocking(process.stdout.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            is_open = True
            while time.monotonic() < until_s and not self._stopped.is_set():
                has_ended = process.poll() is not None
                if is_open and selector.select(0 if has_ended else TICK_S):
                    content = os.read(process.stdout.fileno(), READ_BYTES)
                    room = OUTPUT_BYTES - len(output)
                    output += content[:room]
                    dropped += max(0, len(content) - room)
                    if not content:
                        selector.unregister(process.stdout)
                        is_open = False
                elif has_ended:
                    break
                elif not is_open:
                    time.sleep(TICK_S)
        return bytes(output), dropped


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a command: itself if it still runs, and whatever it started."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            log.debug("on_model: the command ignores SIGTERM")
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody may be left
        os.killpg(group, number)
