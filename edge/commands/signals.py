"""Ctrl-C and SIGTERM in commands that run until somebody ends them."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["on_signals"]

log = logging.getLogger(__name__)


@contextmanager
def on_signals(stop: Callable[[], None], *, given_up: str = "") -> Iterator[None]:
    """Call `stop` on the first SIGINT or SIGTERM; the second ends the process at once.

    `given_up` says what is lost; empty if nothing is.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if given_up:
            log.warning("got %s; stopping, %s", name, given_up)
        else:
            log.info("got %s; stopping", name)
        restore()
        stop()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
