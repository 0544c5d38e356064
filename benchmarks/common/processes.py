"""For commands that start processes: stop them in order, and notice when one dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["ending_on_sigterm", "stop", "watched"]

WATCH_S = 0.5


def stop(process: subprocess.Popen[bytes], *, limit_s: float) -> None:
    """Ask the process to end; kill it if it is still there after `limit_s`."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """During the block, SIGTERM ends this process as Ctrl-C does: with everything that it has started."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def watched(has_died: Callable[[], object], on_death: Callable[[], None]) -> Iterator[None]:
    """During the block, call `on_death` once, from a separate thread, when `has_died` returns true."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_S):
            if has_died():
                on_death()
                return

    thread = threading.Thread(target=watch, name="process-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
