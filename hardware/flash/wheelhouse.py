"""Collects and checks the wheels that a board installs without a network."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from sparsyedge.edge.errors import FlashError

__all__ = ["BOARD", "MACHINES", "PYTHONS", "Wheel", "collect", "platforms", "select"]

PYTHONS = ("3.11", "3.13")
"""The Pythons of Raspberry Pi OS Bookworm and Trixie."""
BOARD = "aarch64"
MACHINES = (BOARD, "x86_64")
"""Kinds of processors, as `uname -m` says them; cards and phones are all of the first kind."""
PACKAGE = "sparsyedge"
PIP_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Wheel:
    """A wheel, described by its file name."""

    path: Path
    name: str
    version: Version
    tags: frozenset[Tag]

    def fits(self, python: str, machine: str = BOARD) -> bool:
        """Whether a device with this Python can install it."""
        return any(_fits(tag, python, machine) for tag in self.tags)


def collect(out: Path, *, wheel: Path, pythons: Sequence[str] = PYTHONS, machine: str = BOARD) -> list[Wheel]:
    """Collect our wheel, its dependencies on such a machine, and pip itself in a new folder."""
    if out.exists():
        raise FlashError(f"{out} exists; remove it, or choose another folder with --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        unfinished = Path(folder) / "wheels"
        unfinished.mkdir()
        shutil.copy(wheel, unfinished)
        for python in pythons:
            _download(unfinished, [*_needs(wheel, python, machine), "pip"], python, machine)
            select(unfinished, python, machine)
        unfinished.rename(out)
    return _wheels(out)


def select(folder: Path, python: str, machine: str = BOARD) -> list[Wheel]:
    """The wheels that a board with this Python installs, including pip; raises FlashError that names a missing wheel.

    Takes the newest of several versions, then looks for that wheel's own dependencies.
    """
    if not folder.is_dir():
        raise FlashError(f"no wheelhouse {folder}; collect one with `sparsyedge flash wheelhouse --out {folder}`")
    wheels = [wheel for wheel in _wheels(folder) if wheel.fits(python, machine)]
    chosen: dict[str, Wheel] = {}
    wanted = [Requirement(PACKAGE), Requirement("pip")]
    while wanted:
        need = wanted.pop()
        name = canonicalize_name(need.name)
        if name in chosen:
            continue
        fitting = [wheel for wheel in wheels if wheel.name == name and need.specifier.contains(wheel.version)]
        if not fitting:
            raise FlashError(
                f"{folder} has no wheel of {need} for Python {python} on {_kind(machine)}; "
                f"collect it with `sparsyedge flash wheelhouse --out DIR --python {python}`"
            )
        chosen[name] = max(fitting, key=lambda wheel: wheel.version)
        wanted += [Requirement(line) for line in _needs(chosen[name].path, python, machine)]
    return sorted(chosen.values(), key=lambda wheel: wheel.name)


def _kind(machine: str) -> str:
    return "64-bit ARM" if machine == BOARD else machine


def _wheels(folder: Path) -> list[Wheel]:
    found = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except ValueError as error:
            raise FlashError(f"{path} is not named like a wheel: {error}; remove it from the wheelhouse") from error
        found.append(Wheel(path, name, version, tags))
    return found


def platforms(machine: str) -> tuple[str, ...]:
    """The platform tags of wheels that Debian 12 and later load, newest first, in pip's order of preference."""
    # Debian 12 has glibc 2.36.
    oldest = ("manylinux2014_{}", "manylinux2010_{}", "manylinux1_{}")[: 1 if machine == BOARD else 3]
    return (
        *(f"manylinux_2_{minor}_{machine}" for minor in range(36, 16 if machine == BOARD else 4, -1)),
        *(tag.format(machine) for tag in oldest),
        *(() if machine == BOARD else (f"linux_{machine}",)),
    )


def _fits(tag: Tag, python: str, machine: str) -> bool:
    major, minor = python.split(".")
    if tag.platform not in ("any", *platforms(machine)):
        return False
    if tag.abi == "abi3":
        return tag.interpreter.startswith("cp3") and int(tag.interpreter[3:]) <= int(minor)
    here = f"cp{major}{minor}"
    return (tag.interpreter, tag.abi) in (
        (here, here),
        (here, "none"),
        (f"py{major}", "none"),
        (f"py{major}{minor}", "none"),
    )


def _needs(wheel: Path, python: str, machine: str) -> list[str]:
    """A wheel's dependencies whose markers hold on such a machine."""
    environment = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    needs = [Requirement(line) for line in _metadata(wheel).get_all("Requires-Dist") or []]
    return [f"{one.name}{one.specifier}" for one in needs if one.marker is None or one.marker.evaluate(environment)]


def _metadata(wheel: Path) -> email.message.Message:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(archive.read(name))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise FlashError(f"{wheel} is not a readable wheel: {error}; download or build it again") from error


def _download(folder: Path, needs: Sequence[str], python: str, machine: str) -> None:
    wanted = [item for platform in platforms(machine) for item in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *wanted]
    done = subprocess.run(
        [*command, "--dest", str(folder), *needs], capture_output=True, text=True, timeout=PIP_LIMIT_S
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FlashError(
            f"pip could not download the wheels for Python {python} on {_kind(machine)}: "
            f"{(said or ['no reason given'])[-1].removeprefix('ERROR: ')}; check the network"
        )
