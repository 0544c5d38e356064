"""What pip would install beside our wheel on 64-bit ARM Linux, one requirement to a line.

pip cannot be asked: it evaluates markers for the machine that it runs on.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["requirements"]


def requirements(pyproject: Path, *, python: str, extra: str | None = None) -> list[str]:
    """The dependencies of the device, and of an extra, whose markers hold on 64-bit ARM Linux."""
    environment = {
        "sys_platform": "linux",
        "platform_machine": "aarch64",
        "platform_system": "Linux",
        "python_version": python,
        "implementation_name": "cpython",
    }
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    wanted = [Requirement(line) for line in declared]
    return [f"{one.name}{one.specifier}" for one in wanted if one.marker is None or one.marker.evaluate(environment)]


def main(argv: list[str]) -> int:
    """Print the requirements in the format of `pip install -r`."""
    parser = argparse.ArgumentParser(prog="python -m sparsyedge.hardware.arm.requirements", description=__doc__)
    parser.add_argument("--python", default="3.11", metavar="X.Y", help="the Python of the device")
    parser.add_argument("--extra", help="an extra of the package, such as coordinator")
    options = parser.parse_args(argv)
    print("\n".join(requirements(Path("pyproject.toml"), python=options.python, extra=options.extra)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
