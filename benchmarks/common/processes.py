"""What every command that starts processes does about them: stop them in order, and notice when one dies."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["stop", "watched"]

WATCH_S = 0.5


def stop(process: subprocess.Popen[bytes], *, limit_s: float) -> None:
    """Ask the process to end, and kill it where it has not after `limit_s`."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def watched(has_died: Callable[[], object], on_death: Callable[[], None]) -> Iterator[None]:
    """Call `on_death` once, from a thread of its own, when `has_died` says so while the block lasts."""
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
