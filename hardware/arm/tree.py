"""A Debian arm64 tree with our wheel in it, and how to run its programs on another machine, under qemu-user.

Packages are only unpacked: no maintainer script runs, so nothing is emulated while the tree is built, and it takes
seconds. Python packages come as wheels for aarch64, chosen as pip on a Pi would choose them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.arm.build_steps import run_build
from sparsyedge.hardware.arm.requirements import requirements
from sparsyedge.hardware.arm.wheel import PLATFORM

__all__ = ["PYTHON_OF_SUITE", "SITE", "build", "emulated"]

PYTHON_OF_SUITE = {"bookworm": "3.11", "trixie": "3.13"}
"""Debian 12 and 13, and the Raspberry Pi OS releases of the same name."""
PACKAGES = ("python3", "libstdc++6", "ca-certificates", "dash", "coreutils")
SITE = "/opt/sparsyedge"
"""Where the Python packages are, inside the tree."""
QEMU = "qemu-aarch64-static"
# Tags of wheels for our glibc or an older one; newest first, in pip's order of preference.
PLATFORMS = (PLATFORM, *(f"manylinux_2_{minor}_aarch64" for minor in range(33, 16, -1)), "manylinux2014_aarch64")
# onnxruntime 1.31 crashes on import if it sees an x86 /proc/cpuinfo along with a real /sys, so we show it a Pi 4's.
CPUINFO = "".join(
    f"processor\t: {core}\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n"
    f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\n"
    for core in range(4)
)


def build(tree: Path, wheel: Path | None, *, suite: str = "bookworm", more: Sequence[str] = ()) -> None:
    """Make the tree at a new path; given our wheel, install it with its dependencies."""
    if tree.exists():
        raise ConfigError(f"{tree} exists; remove it, or name another place for the tree")
    if suite not in PYTHON_OF_SUITE:
        raise ConfigError(f"suite is {suite!r}, allowed are {', '.join(PYTHON_OF_SUITE)}")
    qemu = _require(QEMU, package="qemu-user-static")
    _require("mmdebstrap", package="mmdebstrap")
    tree.parent.mkdir(parents=True, exist_ok=True)
    unfinished = tree.with_name(f".{tree.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    mode = "root" if os.geteuid() == 0 else "unshare"
    options = [f"--mode={mode}", "--architectures=arm64", "--variant=extract", "--skip=check/qemu", "--quiet"]
    include = ",".join((*PACKAGES, *more))
    _run(["mmdebstrap", *options, f"--include={include}", suite, str(unfinished)])
    _pose_as_pi4(unfinished)
    shutil.copy(qemu, unfinished / "usr/bin" / QEMU)
    if wheel is not None:
        _install(unfinished, wheel, python=PYTHON_OF_SUITE[suite])
    unfinished.rename(tree)


def emulated(tree: Path, *command: str) -> list[str]:
    """The command line that runs a program from the tree; run its child programs the same way. Needs root.

    QEMU_CPU in the environment chooses the processor: cortex-a53 is a Pi 3, cortex-a72 a Pi 4, cortex-a76 a Pi 5.
    """
    return ["chroot", str(tree), f"/usr/bin/{QEMU}", *command]


def _install(tree: Path, wheel: Path, *, python: str) -> None:
    target = tree / SITE.removeprefix("/")
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"]
    place = [f"--target={target}", f"--python-version={python}", "--implementation=cp", *platforms]
    needs = requirements(Path("pyproject.toml"), python=python)
    _run([*pip, *place, *needs])
    _run([*pip, *place, "--no-deps", "--upgrade", str(wheel)])


def _pose_as_pi4(tree: Path) -> None:
    """Write the few files under /proc and /sys that a runtime reads to identify the processor."""
    processors = tree / "sys/devices/system/cpu"
    for folder in (tree / "proc", processors):
        folder.mkdir(parents=True, exist_ok=True)
    (tree / "proc/cpuinfo").write_text(CPUINFO)
    for name in ("possible", "present"):
        (processors / name).write_text("0-3\n")


def _require(program: str, *, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ConfigError(f"no {program} here; on Debian: apt-get install {package}")
    return path


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def main(argv: list[str]) -> int:
    """Build a tree and print how long it took."""
    parser = argparse.ArgumentParser(prog="python -m sparsyedge.hardware.arm.tree", description=__doc__)
    parser.add_argument("tree", type=Path, help="the folder to make")
    parser.add_argument("--wheel", type=Path, help="our wheel, from `make wheel-aarch64`")
    parser.add_argument("--suite", choices=list(PYTHON_OF_SUITE), default="bookworm", help="Debian 12 or 13")
    parser.add_argument("--include", default="", metavar="PACKAGE,...", help="more Debian packages")
    options = parser.parse_args(argv)

    def build_tree() -> str:
        more = [name for name in options.include.split(",") if name]
        build(options.tree, options.wheel, suite=options.suite, more=more)
        return f"{options.tree}: Debian {options.suite} for arm64"

    return run_build(build_tree)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
