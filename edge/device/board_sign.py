"""Shows whoever stands before the board what its device is doing: one word for the LED, one sentence for the console.

The device runs without rights, so it only writes a small file; the card's `sparsyedge-sign.service` reads it and sets
the LED, the greeting of the console and that of a login. Without that folder nothing happens.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sparsyedge.edge.text import one_line

__all__ = ["STATUS_NAME", "BoardSign", "State"]

log = logging.getLogger(__name__)

State = Literal["starting", "waiting", "training", "sending", "paused", "trouble"]
STATUS_NAME = "status"
MAX_SENTENCE = 160
READABLE = 0o644


class BoardSign:
    """The board's LED and console, if the service manager gave us a folder for them; never in the way of training."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        found = os.environ if environment is None else environment
        # systemd separates several folders with colons.
        folder = found.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        self._path = Path(folder, STATUS_NAME) if folder else None
        self._shown: tuple[str, str] | None = None

    def show(self, state: State, sentence: str) -> None:
        """Show this from now on; cheap if it is what is shown already."""
        if self._path is None or self._shown == (state, sentence):
            return
        self._shown = (state, sentence)
        try:
            with self._path.open("w", encoding="utf-8") as file:
                # The service that reads it is another user without special rights, and ours may keep files private.
                os.fchmod(file.fileno(), READABLE)
                file.write(f"{state}\n{one_line(sentence, MAX_SENTENCE)}\n")
        except OSError as error:
            log.debug("the board's sign cannot be set: %s", error)
