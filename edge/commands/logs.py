"""A command's log: lines on stderr in one format, set up once for every command.

Standard output is for answers: tables, documents, the requested result.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["be_verbose", "name_lines", "set_level", "set_up"]

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"

_ours = logging.getLogger("sparsyedge")


class _Stderr(logging.Handler):
    """Writes to the current stderr: a progress bar redirects it while it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except BrokenPipeError:
            pass  # nobody reads the log any more; keep working
        except Exception:
            self.handleError(record)


_handler = _Stderr()


def set_up() -> None:
    """Show warnings, with time and level; a command with more to say sets another level."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # onnxruntime-training installs its own handler on import, which would print each line twice.
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    if _handler not in root.handlers:
        root.addHandler(_handler)
    root.setLevel(logging.WARNING)
    _ours.setLevel(logging.WARNING)
    name_lines("")


def name_lines(who: str) -> None:
    """Add a device's id to every line, for logs of several devices in one place."""
    name = f"{who.replace('%', '%%')} " if who else ""
    _handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {name}%(message)s", TIME_FORMAT))


def be_verbose() -> None:
    """Show debug lines, too."""
    _ours.setLevel(logging.DEBUG)


def set_level(level: str) -> None:
    """Show our lines from that level up; `--verbose` wins over it."""
    if _ours.level != logging.DEBUG:
        _ours.setLevel(level.upper())
