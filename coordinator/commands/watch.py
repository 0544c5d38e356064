"""Redraws a view of a run as the run goes on, for `--watch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

__all__ = ["View", "watch"]

EVERY_S = 2.0


@dataclass(frozen=True)
class View:
    """A picture and the facts behind it; we do not print the same `facts` twice."""

    picture: RenderableType
    facts: object


def watch(console: Console, look: Callable[[], View]) -> NoReturn:
    """Redraw what `look` returns until Ctrl-C; if the output is no terminal, print it when its facts change."""
    if console.is_terminal:
        with Live(look().picture, console=console, auto_refresh=False) as live:
            while True:
                time.sleep(EVERY_S)
                live.update(look().picture, refresh=True)
    before = None
    while True:
        now = look()
        if before is None or now.facts != before.facts:
            console.print(now.picture)
            console.file.flush()
        before = now
        time.sleep(EVERY_S)
