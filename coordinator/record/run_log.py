"""coordinator.log: what the coordinator said, in the run's folder, for the page and for whoever comes later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from sparsyedge.edge.commands.logs import TIME_FORMAT
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["LOG_NAME", "run_log"]

LOG_NAME = "coordinator.log"
MAX_BYTES = 4 * 1024 * 1024
"""One older file of this size is kept beside the present one."""


class _QuietFile(RotatingFileHandler):
    """A log file that a full disk ends silently: the same lines go to stderr, and the store reports the disk."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        pass


@contextmanager
def run_log(run_dir: Path) -> Iterator[None]:
    """Write our log lines into the run's folder, too, within the block; the caller holds the folder's lock."""
    path = run_dir / LOG_NAME
    try:
        path.touch(mode=0o600)
        handler = _QuietFile(path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", errors="replace")
    except OSError:
        yield
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", TIME_FORMAT))
    ours = logging.getLogger("sparsyedge")
    ours.addHandler(handler)
    try:
        yield
    except SparsyedgeError as error:
        # The command prints it, so no logger hears of it.
        handler.handle(ours.makeRecord(ours.name, logging.ERROR, __file__, 0, str(error), (), None))
        raise
    finally:
        ours.removeHandler(handler)
        with suppress(OSError):
            handler.close()
