"""op_libraries.json: the op libraries installed on a fleet's devices. `sign` signs for all of them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from sparsyedge.edge.errors import ArtifactError, SecurityError
from sparsyedge.edge.model.artifacts import OpLibrary
from sparsyedge.edge.native import LIBRARY_NAME
from sparsyedge.edge.storage import write_atomically

__all__ = [
    "LIBRARIES_NAME",
    "RecordedLibrary",
    "forget",
    "known_libraries",
    "library_content",
    "platform_of",
    "record",
    "recorded",
]

LIBRARIES_NAME = "op_libraries.json"
MAX_LIBRARY_BYTES = 256 << 20
ELF_MAGIC = b"\x7fELF"
ELF_HEADER_BYTES = 64
ELF_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}


class RecordedLibrary(OpLibrary, frozen=True, forbid_unknown_fields=True):
    """An op library on devices, and the wheel that contained it."""

    wheel: Annotated[str, msgspec.Meta(max_length=255)]


def known_libraries(folder: Path) -> tuple[OpLibrary, ...]:
    """The op libraries on record in an authority's folder, as a manifest lists them."""
    return tuple(OpLibrary(library.platform, library.sha256) for library in recorded(folder))


def recorded(folder: Path) -> tuple[RecordedLibrary, ...]:
    """Return the recorded op libraries with the names of their wheels."""
    path = folder / LIBRARIES_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[RecordedLibrary, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SecurityError(
            f"cannot read {path}: {error}; restore it from a backup, or remove it and record the devices' wheels "
            f"again with `sparsyedge coordinator library WHEEL --dir {folder}`"
        ) from error


def record(folder: Path, sources: Sequence[Path]) -> tuple[RecordedLibrary, ...]:
    """Record the op libraries of wheels or wheelhouses; returns the new ones."""
    found = {library.sha256: library for wheel in _wheels(sources) for library in [_described(wheel)]}
    with _alone(folder):
        before = {library.sha256: library for library in recorded(folder)}
        new = tuple(library for sha256, library in found.items() if sha256 not in before)
        if new:
            _write(folder, [*before.values(), *new])
    return new


def forget(folder: Path, prefix: str) -> RecordedLibrary:
    """Remove the library whose hash starts with `prefix`; raises ArtifactError unless exactly one does."""
    with _alone(folder):
        before = recorded(folder)
        meant = [library for library in before if library.sha256.startswith(prefix.lower())]
        if len(meant) != 1:
            raise ArtifactError(
                f"{len(meant)} recorded op libraries have a hash that begins with {prefix!r}, needed is one; "
                f"`sparsyedge coordinator library --dir {folder}` lists them"
            )
        _write(folder, [library for library in before if library != meant[0]])
    return meant[0]


def platform_of(library: bytes) -> str:
    """Return the platform of a shared library, from its ELF header."""
    if library[:4] != ELF_MAGIC or len(library) < ELF_HEADER_BYTES:
        return "unknown"
    machine = int.from_bytes(library[18:20], "little")
    return f"linux-{ELF_MACHINES.get(machine, f'machine-{machine}')}"


def library_content(path: Path) -> bytes:
    """Read the op library from a wheel, or from a library file."""
    if not path.is_file():
        raise ArtifactError(f"no wheel or op library {path}; check the path")
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        inside = [entry for entry in wheel.infolist() if Path(entry.filename).name == LIBRARY_NAME]
        if len(inside) != 1 or inside[0].file_size > MAX_LIBRARY_BYTES:
            raise ArtifactError(f"{path} is not a wheel of sparsyedge: it does not hold one {LIBRARY_NAME}")
        return wheel.read(inside[0])


def _described(wheel: Path) -> RecordedLibrary:
    content = library_content(wheel)
    platform = platform_of(content)
    if platform == "unknown":
        raise ArtifactError(f"{wheel} holds no op library for Linux; name a wheel of sparsyedge that devices install")
    return RecordedLibrary(platform=platform, sha256=hashlib.sha256(content).hexdigest(), wheel=wheel.name[:255])


def _wheels(sources: Sequence[Path]) -> Iterator[Path]:
    """Yield the named files, and only our own wheels from a wheelhouse: no other wheel contains an op library."""
    for source in sources:
        if not source.is_dir():
            yield source
            continue
        ours = sorted(source.glob("sparsyedge-*.whl"))
        if not ours:
            raise ArtifactError(
                f"{source} holds no wheel of sparsyedge; name a wheel, or a folder of `sparsyedge flash wheelhouse`"
            )
        yield from ours


def _write(folder: Path, libraries: Iterable[RecordedLibrary]) -> None:
    ordered = sorted(libraries, key=lambda library: (library.platform, library.wheel, library.sha256))
    write_atomically(folder / LIBRARIES_NAME, msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time change the record: parallel flash commands must not undo each other's entries."""
    # Lock the folder, since every change replaces the file.
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
