"""The files of a release: one source distribution, and a wheel per platform that is built from it."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path, PurePosixPath

from release.refusal import ReleaseRefused
from sparsyedge.hardware.arm.wheel import PLATFORM, PLATFORM_X86, build

__all__ = ["FOLDERS", "build_packages", "check_sdist", "check_wheel_content", "unpack"]

FOLDERS = ("edge", "coordinator", "export", "benchmarks", "hardware")
"""The folders of the repository that make up the package."""
LIBRARIES = {f"sparsyedge/edge/native/libsparsyedge_{name}.so" for name in ("ops", "codec")}
RESULTS = "sparsyedge/benchmarks/results/"
SOURCES = (".cc", ".h", ".inc", ".ver", ".cmake", ".pyc")
"""Ends of names that no wheel has: what is compiled before, and what Python compiles afterwards."""


def build_packages(tree: Path, out: Path, *, epoch: int) -> list[Path]:
    """Build the sdist from a tree of HEAD, and the wheels for x86-64 and 64-bit ARM from the unpacked sdist."""
    with _time_stamped(epoch):
        command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(tree)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (sdist,) = out.glob("*.tar.gz")
        source = unpack(sdist, tree.with_name("sdist"))
        return [sdist, *(build(source, out, platform) for platform in (PLATFORM_X86, PLATFORM))]


def unpack(sdist: Path, folder: Path) -> Path:
    """Write the sources below the folder; returns where they are."""

    def dated_now(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        # Ninja never finishes where a source is newer than the clock.
        return tarfile.data_filter(member, path).replace(mtime=int(time.time()))

    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter=dated_now)
    return folder / sdist.name.removesuffix(".tar.gz")


def check_sdist(sdist: Path, tracked: set[str]) -> None:
    """Refuse an sdist that is not exactly what the commit has, and the metadata that it is published under."""
    with tarfile.open(sdist) as archive:
        top = sdist.name.removesuffix(".tar.gz")
        names = {str(PurePosixPath(one.name).relative_to(top)) for one in archive if not one.isdir()}
    _refuse(sdist, "lacks", tracked - names)
    _refuse(sdist, "has what no commit has:", names - tracked - {"PKG-INFO"})


def check_wheel_content(wheel: Path, tracked: set[str], version: str) -> None:
    """Refuse a wheel that lacks a module or a library, or holds what no user needs."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        information = f"sparsyedge-{version}.dist-info"
        tags = _read(archive, f"{information}/WHEEL").get_all("Tag", [])
        stated = _read(archive, f"{information}/METADATA")["Version"]
    package = {name for name in names if not name.startswith(f"{information}/")}
    expected = {f"sparsyedge/{path}" for path in tracked if path.split("/")[0] in FOLDERS}
    modules = {name for name in expected if name.endswith((".py", ".pyi", "py.typed")) and not name.startswith(RESULTS)}
    _refuse(wheel, "lacks", (modules | LIBRARIES) - package)
    unwanted = {name for name in package if name.startswith(RESULTS) or name.endswith(SOURCES)}
    _refuse(wheel, "holds what no user needs:", unwanted | (package - expected - LIBRARIES))
    tag = wheel.stem.split("-", 2)[2]
    if tags != [tag] or stated != version:
        raise ReleaseRefused(f"{wheel.name} says inside that it is {stated} for {', '.join(tags)}, its name differs")


def _refuse(package: Path, what: str, names: set[str]) -> None:
    if names:
        raise ReleaseRefused(
            f"{package.name} {what} {len(names)} files, {min(names)} first; mend [tool.scikit-build] in pyproject.toml"
        )


def _read(archive: zipfile.ZipFile, name: str) -> Message:
    try:
        return email.message_from_bytes(archive.read(name))
    except KeyError as error:
        raise ReleaseRefused(f"{archive.filename} has no {name}, so it is not a wheel of this version") from error


@contextmanager
def _time_stamped(epoch: int) -> Iterator[None]:
    """Let the build tools of this block stamp files with one time instead of the clock's."""
    before = os.environ.get("SOURCE_DATE_EPOCH")
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SOURCE_DATE_EPOCH"]
        else:
            os.environ["SOURCE_DATE_EPOCH"] = before
