"""`make wheel-aarch64`: the wheel for 64-bit ARM Linux, cross-compiled, and what it asks of the system it lands on.

`make release` builds the wheel for x86-64 with it, too.
The platform tag is a promise that pip checks at install: manylinux_2_34 stands for glibc 2.34 and the libstdc++ of
GCC 11, which Debian 12 (glibc 2.36, GCC 12) and everything newer has. The promise is read off the built libraries.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm.build_steps import run_build

__all__ = ["PLATFORM", "PLATFORM_X86", "PROMISE", "build", "check_wheel", "version_needs"]

PLATFORM = "manylinux_2_34_aarch64"
PLATFORM_X86 = "manylinux_2_34_x86_64"
PROMISE = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11, 0)}
"""The newest symbol version of each library that the platform tag guarantees."""
TOOLCHAIN = Path(__file__).with_name("aarch64.cmake")
COMPILER = "aarch64-linux-gnu-g++"
BUILD_TOOLS = ("cmake>=3.20", "ninja>=1.11")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

Version = tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """The processor of a platform: its name in an ELF header, and its largest page.

    A system cannot map a segment whose alignment is smaller than a page.
    """

    name: str
    elf_name: str
    page_bytes: int


# The Raspberry Pi 5's kernel uses 16 KiB pages.
MACHINES = {
    PLATFORM: Machine("aarch64", "AArch64", 16384),
    PLATFORM_X86: Machine("x86-64", "X86-64", 4096),
}


def build(source: Path, out: Path, platform: str = PLATFORM) -> Path:
    """Compile the wheel of the repository at `source` into `out` and check it; returns its path."""
    if not (source / "pyproject.toml").is_file():
        raise ConfigError(f"{source} has no pyproject.toml; run this in the repository, or name it with --source")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    settings = {"build-dir": f"build/wheel-{MACHINES[platform].name}"}
    if platform == PLATFORM:
        _require_compiler()
        settings["cmake.define.CMAKE_TOOLCHAIN_FILE"] = str(TOOLCHAIN.resolve())
    options = [item for key, value in settings.items() for item in ("--config-settings", f"{key}={value}")]
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), *options, "."]
    with _build_tools(source) as tools:
        # Python's own variable for the target platform of a cross build; it becomes the wheel's tag.
        environment = {**os.environ, "PYTHONPATH": str(tools), "_PYTHON_HOST_PLATFORM": platform}
        subprocess.run(command, cwd=source, env=environment, check=True)
    wheel = max(out.glob(f"sparsyedge-*-{platform}.whl"), key=lambda path: path.stat().st_mtime_ns)
    check_wheel(wheel)
    return wheel


@contextmanager
def _build_tools(source: Path) -> Iterator[Path]:
    """A folder with the build tools for this machine.

    Left to itself, pip would fetch them for the wheel's platform and compile CMake, which takes an hour.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="sparsyedge-build-") as folder:
        command = [*PIP, "install", "--target", folder, *project["build-system"]["requires"], *BUILD_TOOLS]
        subprocess.run(command, check=True)
        yield Path(folder)


def check_wheel(wheel: Path) -> dict[str, dict[str, Version]]:
    """Symbol versions that each library in the wheel needs; raises ConfigError if they exceed the platform tag's."""
    needs: dict[str, dict[str, Version]] = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in (name for name in archive.namelist() if name.endswith(".so")):
            library = Path(archive.extract(name, folder))
            needs[library.name] = version_needs(library)
            _check_library(library, needs[library.name], wheel.stem.rpartition("-")[2])
        results = sum("/benchmarks/results/" in name for name in archive.namelist())
    if not needs:
        raise ConfigError(f"{wheel} holds no native library; build it with `make wheel-aarch64`")
    if results:
        raise ConfigError(
            f"{wheel} holds {results} files of benchmarks/results, which no device needs; `wheel.exclude` in "
            f"pyproject.toml leaves them out"
        )
    return needs


def version_needs(library: Path) -> dict[str, Version]:
    """The newest symbol version that an ELF file needs from each system library: {"GLIBC": (2, 29), ...}."""
    needs: dict[str, Version] = {}
    for name, digits in re.findall(r"Name: (\w+?)_([0-9.]+)\s+Flags", _readelf("--version-info", library)):
        needs[name] = max(needs.get(name, ()), tuple(int(digit) for digit in digits.split(".")))
    return needs


def _check_library(library: Path, needs: dict[str, Version], platform: str) -> None:
    if platform not in MACHINES:
        raise ConfigError(f"{library.name} is for the platform {platform}, allowed are {', '.join(MACHINES)}")
    machine = MACHINES[platform]
    if machine.elf_name not in _readelf("--file-header", library):
        raise ConfigError(
            f"{library.name} is not for {machine.elf_name}; remove build/wheel-{machine.name} and build again"
        )
    for name, version in needs.items():
        if version > PROMISE.get(name, ()):
            raise ConfigError(
                f"{library.name} needs {name}_{_dotted(version)}, {platform} promises "
                f"{_dotted(PROMISE[name]) if name in PROMISE else 'no such library'}; build with an older compiler"
            )
    for alignment in re.findall(r"LOAD .* 0x([0-9a-f]+)$", _readelf("--program-headers", library), re.MULTILINE):
        if int(alignment, 16) < machine.page_bytes:
            raise ConfigError(
                f"{library.name} has a segment aligned to 0x{alignment} bytes, must be {machine.page_bytes}"
            )


def _readelf(option: str, file: Path) -> str:
    command = ["readelf", "--wide", option, str(file)]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def _require_compiler() -> None:
    try:
        subprocess.run([COMPILER, "--version"], check=True, capture_output=True)
    except FileNotFoundError as error:
        raise ConfigError(
            f"no {COMPILER} here; on Debian: apt-get install g++-aarch64-linux-gnu libc6-dev-arm64-cross"
        ) from error


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)


def main(argv: list[str]) -> int:
    """Build, check and say what the wheel needs."""
    parser = argparse.ArgumentParser(prog="python -m sparsyedge.hardware.arm.wheel", description=__doc__)
    parser.add_argument("--source", type=Path, default=Path(), help="the repository")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the wheel goes")
    options = parser.parse_args(argv)

    def build_wheel() -> str:
        wheel = build(options.source, options.out)
        for library, needs in check_wheel(wheel).items():
            print(f"{library}: " + ", ".join(f"{name} {_dotted(version)}" for name, version in sorted(needs.items())))
        return f"{wheel}: {wheel.stat().st_size} bytes"

    return run_build(build_wheel)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
