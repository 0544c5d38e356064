"""A package as a user meets it: installed where nothing else is, then used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from release.refusal import ReleaseRefused
from sparsyedge.hardware.arm.tree import SITE, emulated
from sparsyedge.hardware.arm.tree import build as build_tree

__all__ = ["try_in_new_environment", "try_on_emulated_arm"]

LOAD_OPS = (
    "import onnxruntime; from sparsyedge.edge.native import library_path; "
    "onnxruntime.SessionOptions().register_custom_ops_library(str(library_path()))"
)
"""Fails where the op library and the installed onnxruntime do not go together."""
LOAD_CODEC = "import ctypes; from sparsyedge.edge.native import codec_path; ctypes.CDLL(str(codec_path()))"
ARM_TOOLS = ("qemu-aarch64-static", "mmdebstrap")


def try_in_new_environment(package: Path, folder: Path, *, version: str, frame: Path) -> None:
    """Install a wheel or an sdist with its dependencies into a new environment, and read a frame with it."""
    folder = folder.resolve()
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(package.resolve())], check=True)
    _try(package, [str(python)], str(folder / "bin/sparsyedge"), version=version, frame=str(frame.resolve()))


def try_on_emulated_arm(wheel: Path, tree: Path, *, version: str, frame: Path) -> str | None:
    """Do the same in a Debian arm64 tree under qemu; returns why not where this machine cannot."""
    missing = [tool for tool in ARM_TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        return f"needs {' and '.join(missing)}" if missing else "needs root, for chroot"
    tree = tree.resolve()
    build_tree(tree, wheel)
    shutil.copy(frame, tree / "tmp" / frame.name)
    python = emulated(tree, "-E", f"PYTHONPATH={SITE}", "/usr/bin/python3")
    _try(wheel, python, f"{SITE}/bin/sparsyedge", version=version, frame=f"/tmp/{frame.name}")
    return None


def _try(package: Path, python: list[str], program: str, *, version: str, frame: str) -> None:
    said = _say(package, [*python, program, "--version"])
    if said.split() != ["sparsyedge", version]:
        raise ReleaseRefused(f"{package.name} installs a `sparsyedge --version` that says {said!r}, must be {version}")
    for arguments in ([program, "methods"], [program, "frame", "inspect", frame], ["-c", LOAD_CODEC], ["-c", LOAD_OPS]):
        _say(package, [*python, *arguments])


def _say(package: Path, command: list[str]) -> str:
    # Elsewhere than in the checkout, whose folders would be imported in place of the installed ones.
    result = subprocess.run(command, cwd="/", capture_output=True, text=True)
    if result.returncode != 0:
        shown = " ".join(command)
        raise ReleaseRefused(f"{package.name}: once installed, `{shown}` fails: {result.stderr.strip()[-500:]}")
    return result.stdout.strip()
