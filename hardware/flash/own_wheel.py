"""Finds the 64-bit ARM wheel for the sparsyedge that runs here: already built, cross-compiled now, or as installed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.arm.wheel import PLATFORM, build

__all__ = ["own_wheel"]

# The wheel's contents, and the files that control its build.
PACKAGED_FILES = ("pyproject.toml", "CMakeLists.txt")
PACKAGED_FOLDERS = ("edge", "coordinator", "export", "benchmarks", "hardware")
WHEELS = f"sparsyedge-*-{PLATFORM}.whl"


def own_wheel(*, checkout: Path | None, installed: Path | None, say: Callable[[str], None]) -> Path:
    """The wheel of this version for boards; reports slow steps through `say`.

    `checkout` and `installed` say where this sparsyedge was installed from, if known. Never looks in a package index,
    because none has the package.
    """
    if checkout is not None:
        return _built(checkout) or _build(checkout, say)
    if installed is not None and installed.match(WHEELS):
        return installed
    found = _newest(Path("dist"))
    if found is None:
        raise FlashError(
            "this sparsyedge was installed without its sources, so no wheel for 64-bit ARM can be built from it; "
            "in a checkout, run `make wheel-aarch64` and then here `sparsyedge flash wheelhouse --wheel FILE --out DIR`"
        )
    return found


def _built(checkout: Path) -> Path | None:
    """The wheel in dist/ if no source file is newer, as make would decide."""
    wheel = _newest(checkout / "dist")
    if wheel is None:
        return None
    built_at = wheel.stat().st_mtime_ns
    return wheel if all(path.stat().st_mtime_ns <= built_at for path in _sources(checkout)) else None


def _build(checkout: Path, say: Callable[[str], None]) -> Path:
    say(f"cross-compiling sparsyedge for 64-bit ARM in {checkout}, which takes a minute or more")
    start_s = time.monotonic()
    try:
        wheel = build(checkout, checkout / "dist")
    except (OSError, subprocess.CalledProcessError) as error:
        raise FlashError(
            f"the wheel for 64-bit ARM could not be built in {checkout}: {error}; what the build printed is above, "
            "and `make wheel-aarch64` there tries it again"
        ) from error
    say(f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB, made in {time.monotonic() - start_s:.0f} s")
    return wheel


def _newest(folder: Path) -> Path | None:
    return max(folder.glob(WHEELS), key=lambda wheel: wheel.stat().st_mtime_ns, default=None)


def _sources(checkout: Path) -> Iterator[Path]:
    yield from (checkout / name for name in PACKAGED_FILES)
    for folder in PACKAGED_FOLDERS:
        for path in (checkout / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
