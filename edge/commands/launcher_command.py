"""`sparsyedge edge launcher FILE`: writes the launcher, which starts a device that can be upgraded over the air."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.upgrade import launch

__all__ = ["main", "make_parser"]


def main(argv: list[str]) -> int:
    """Write the launcher outside of this environment, and say how to start the device with it."""
    options = make_parser().parse_args(argv)
    environment = Path(sys.prefix)
    place = options.file.absolute()
    if place.is_relative_to(environment):
        raise ConfigError(f"{place} is inside {environment}, which an upgrade replaces; choose a place outside of it")
    try:
        write_atomically(place, Path(launch.__file__).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot write {place}: {error.strerror}; choose another place") from error
    words = ["python3", "-I", str(place), str(place.parent / "slots"), str(environment), "--config", "device.toml"]
    print(f"start the device with: {shlex.join(words)}")
    return 0


def make_parser() -> Parser:
    """The options of `sparsyedge edge launcher`."""
    parser = Parser(
        prog="sparsyedge edge launcher",
        description="Write the launcher, which starts this device, tries releases, and goes back from broken ones.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="where to write it, e.g. ~/sparsyedge/launch.py")
    return parser
