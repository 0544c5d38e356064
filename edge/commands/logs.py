"""What a command says while it works: lines on stderr in one format, set up once for every command.

Standard output is for answers: tables, documents, the result that was asked for.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["be_verbose", "name_lines", "set_level", "set_up"]

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"

_ours = logging.getLogger("sparsyedge")


class _Stderr(logging.Handler):
    """Writes to whatever stderr is at that moment: a progress bar redirects it while it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except BrokenPipeError:
            pass  # nobody reads the log any more; the work goes on
        except Exception:
            self.handleError(record)


_handler = _Stderr()


def set_up() -> None:
    """Show warnings, with the time and the level; a command that has more to say sets another level."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # onnxruntime-training installs a handler of its own when it is imported, and each line would come twice.
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    if _handler not in root.handlers:
        root.addHandler(_handler)
    root.setLevel(logging.WARNING)
    _ours.setLevel(logging.WARNING)
    name_lines("")


def name_lines(who: str) -> None:
    """Put a device's id into every line, for logs of several devices in one place."""
    name = f"{who.replace('%', '%%')} " if who else ""
    _handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {name}%(message)s", TIME_FORMAT))


def be_verbose() -> None:
    """Show what we say for debugging, too."""
    _ours.setLevel(logging.DEBUG)


def set_level(level: str) -> None:
    """Show what we say from that level on; `--verbose` is stronger."""
    if _ours.level != logging.DEBUG:
        _ours.setLevel(level.upper())
