"""The command `sparsyedge`: finds a subcommand, runs it, and turns every known fault into one sentence.

Imports a subcommand only when it runs: a device has neither torch nor the coordinator's libraries.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import version_line
from sparsyedge.edge.commands.command_table import listing
from sparsyedge.edge.commands.installed_commands import find_command, installed_commands
from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.edge.installation import install_command
from sparsyedge.edge.supported import check_platform

__all__ = ["main"]

EXIT_FAULT = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code; print every known fault as one sentence on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logs.set_up()
    while arguments[:1] in (["-v"], ["--verbose"]):
        logs.be_verbose()
        del arguments[0]
    try:
        with _unwound_by_sigterm():
            code = _dispatch(arguments)
            sys.stdout.flush()
    except SparsyedgeError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "sparsyedge":
            raise
        return _fail(_explain_missing(error.name, arguments[0]))
    except _Terminated:
        # Cleanup is done. Die by the signal, as its sender expects.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
        return EXIT_TERMINATED  # if the signal is blocked
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Our reader has gone. Point stdout elsewhere, or the interpreter complains at its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAULT
    return code


class _Terminated(KeyboardInterrupt):
    """SIGTERM arrived. The command ends as it does on Ctrl-C and takes its children with it."""


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise in the main thread inside the block; commands may install their own handler."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dispatch(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help"):
        print(_usage())
        return 0
    if command == "--version":
        print(version_line())
        return 0
    found = find_command(command)
    check_platform()
    return found.run(rest)


def _usage() -> str:
    lines = [
        "usage: sparsyedge [-h] [-v] [--version] SUBCOMMAND ...",
        "",
        "On-device training runtime for sparse federated learning.",
        "",
        listing(installed_commands()),
        "",
        "options, here and after every subcommand:",
        "  -h, --help     show a help page and exit",
        "  -v, --verbose  log more, for debugging",
        "  --version      print the version and exit",
    ]
    return "\n".join(lines)


def _explain_missing(module: str, command: str) -> str:
    extra = find_command(command).extra
    return f"`{command}` needs the module {module}, which is not installed; run `{install_command(extra)}`"


def _fail(sentence: str) -> int:
    print(f"sparsyedge: error: {sentence}", file=sys.stderr)
    return EXIT_FAULT
