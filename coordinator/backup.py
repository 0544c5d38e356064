"""Backups of a fleet's authority and of runs while they are under way: one file, whole or refused.

    fleet/...                       the authority's folder
    runs/0/run/..., artifacts/...   a run's folder and the artifacts it trains, one number per run
    backup.json                     what is inside, with hashes; the last entry, so a backup that was cut short has none

A run's files change while we copy them. Each is immutable or only grows, so we take links to all of them first and a
copy of the database then. If a round closed in between, we begin again.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO

import msgspec

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.rotation import rotating
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.record.store import STORE_NAME, Store
from sparsyedge.edge.compatibility import own_software
from sparsyedge.edge.config import Identifier
from sparsyedge.edge.errors import RunError, SecurityError, StoreError
from sparsyedge.edge.storage import sync_directory, write_atomically
from sparsyedge.edge.toml_text import toml_text

__all__ = ["Contents", "make_backup", "restore_backup"]

VERSION = 1
INDEX_NAME = "backup.json"
LEDGER_NAME = "authority.sqlite"
MOST_INDEX_BYTES = 64 << 20
MOST_FILES = 1_000_000
TRIES = 20
SKIPPED_SUFFIXES = ("-wal", "-shm", "-journal", ".lock", ".pid", ".part")
SKIPPED_NAMES = frozenset({"live.sqlite"})
"""What a run is doing right now is of no use later."""
COPY_BYTES = 1 << 20
SCRATCH = ".backup."
STALE_S = 86400.0

FilePath = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class Entry(msgspec.Struct, frozen=True):
    """A file in a backup."""

    path: FilePath
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class RunEntry(msgspec.Struct, frozen=True):
    """A run in a backup."""

    name: Identifier
    closed_round: int
    config: dict[str, Any]
    """As recorded in the run's store."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a backup."""

    version: int = VERSION
    made_unix_s: float
    software: str
    fleet: Identifier | None = None
    fleet_folder: str | None = None
    """Where the authority was; its broker's configuration names the folder."""
    runs: Annotated[tuple[RunEntry, ...], msgspec.Meta(max_length=1000)] = ()
    files: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MOST_FILES)] = ()


# ---- making one ------------------------------------------------------------------------------------------------------


def make_backup(out: Path, *, fleet: Path | None, run_dirs: tuple[Path, ...]) -> Contents:
    """Write a backup that only its owner can read; raises RunError if `out` exists or something cannot be read."""
    if fleet is None and not run_dirs:
        raise RunError("there is nothing to back up; name a fleet's folder with --fleet, or run directories")
    if out.exists():
        raise RunError(f"{out} exists already; choose another name, a backup never overwrites one")
    unfinished = out.with_name(f".{out.name}.part")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            contents = _Writer(file).write(fleet, run_dirs)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(out)
        sync_directory(out.absolute().parent)
    except OSError as error:
        raise RunError(f"cannot write the backup {out}: {error}; check the disk and the path") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return contents


class _Writer:
    """Writes one backup."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[Entry] = []

    def write(self, fleet: Path | None, run_dirs: tuple[Path, ...]) -> Contents:
        with tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            name = self._add_fleet(archive, fleet) if fleet else None
            runs = tuple(self._add_run(archive, number, run_dir) for number, run_dir in enumerate(run_dirs))
            contents = Contents(
                made_unix_s=time.time(),
                software=own_software(),
                fleet=name,
                fleet_folder=str(fleet.resolve()) if fleet else None,
                runs=runs,
                files=tuple(self._entries),
            )
            _add_bytes(archive, INDEX_NAME, msgspec.json.encode(contents))
        return contents

    def _add_fleet(self, archive: tarfile.TarFile, folder: Path) -> str:
        authority = Authority.open(folder)
        with rotating(authority):
            self._add_files_of(archive, folder)
        return authority.settings.fleet

    def _add_files_of(self, archive: tarfile.TarFile, folder: Path) -> None:
        """Add the authority's files, which belong together: nobody rotates it meanwhile."""
        with tempfile.TemporaryDirectory(prefix="sparsyedge-backup-") as scratch:
            ledger = Path(scratch) / LEDGER_NAME
            copy_database(folder / LEDGER_NAME, ledger)
            self._add(archive, f"fleet/{LEDGER_NAME}", ledger)
        for path in _files(folder):
            if path.name != LEDGER_NAME:
                self._add(archive, f"fleet/{path.relative_to(folder).as_posix()}", path)

    def _add_run(self, archive: tarfile.TarFile, number: int, run_dir: Path) -> RunEntry:
        with _snapshot(run_dir) as snapshot:
            for path in _files(snapshot.folder):
                self._add(archive, f"runs/{number}/run/{path.relative_to(snapshot.folder).as_posix()}", path)
        artifacts = Path(snapshot.entry.config["artifacts"]).expanduser()
        if not artifacts.is_dir():
            raise RunError(f"the artifacts of the run in {run_dir} are not in {artifacts} any more; put them back")
        for path in _files(artifacts):
            self._add(archive, f"runs/{number}/artifacts/{path.relative_to(artifacts).as_posix()}", path)
        return snapshot.entry

    def _add(self, archive: tarfile.TarFile, name: str, path: Path) -> None:
        """Add a file as long as it is now: one that grows must not differ from its own length."""
        with path.open("rb") as file:
            info = tarfile.TarInfo(name)
            info.size, info.mode = os.fstat(file.fileno()).st_size, 0o600
            reader = _Hashed(file, info.size)
            archive.addfile(info, reader)
        self._entries.append(Entry(name, info.size, reader.sha256.hexdigest()))


class _Hashed(io.RawIOBase):
    """Reads the first bytes of a file, and hashes them on the way."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(content)
        self.sha256.update(content)
        return content


@dataclass(frozen=True)
class _Snapshot:
    """A run's folder at one moment."""

    folder: Path
    entry: RunEntry


@contextmanager
def _snapshot(run_dir: Path) -> Iterator[_Snapshot]:
    """Links to a run's files and a copy of its store, which belong together; gone after the block.

    The links are in the run's folder itself, since they cannot leave its file system.
    """
    _remove_stale(run_dir)
    with tempfile.TemporaryDirectory(dir=run_dir, prefix=SCRATCH, suffix=".part") as scratch:
        for attempt in range(TRIES):
            folder = Path(scratch) / str(attempt)
            before = _closed_round(run_dir)
            _link_files(run_dir, folder)
            copy_database(run_dir / STORE_NAME, folder / STORE_NAME)
            with closing(Store.open(folder)) as store:
                config = msgspec.json.decode(store.config(), type=dict[str, Any])
                entry = RunEntry(store.run().name, store.progress().closed_round, config)
            if entry.closed_round == before:
                yield _Snapshot(folder, entry)
                return
            shutil.rmtree(folder)
    raise RunError(
        f"the run in {run_dir} closed a round during each of {TRIES} attempts; pause it with "
        f"`sparsyedge coordinator pause {run_dir}` and try again"
    )


def _remove_stale(run_dir: Path) -> None:
    """Remove what a backup left that was killed: its links keep files on the disk that the run has removed."""
    for path in run_dir.glob(f"{SCRATCH}*.part"):
        if time.time() - path.stat().st_mtime > STALE_S:
            shutil.rmtree(path, ignore_errors=True)


def _closed_round(run_dir: Path) -> int:
    with closing(Store.open(run_dir)) as store:
        return store.progress().closed_round


def _link_files(run_dir: Path, folder: Path) -> None:
    folder.mkdir()
    for path in _files(run_dir):
        if path.name == STORE_NAME:
            continue
        target = folder / path.relative_to(run_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except FileNotFoundError:
            continue  # removed since we listed it; the check of the round says whether that matters


def _files(folder: Path) -> Iterator[Path]:
    """The files worth keeping below a folder, in order; no links, sockets or leftovers."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.endswith(".part"))
        for name in sorted(names):
            path = Path(place) / name
            if name in SKIPPED_NAMES or name.endswith(SKIPPED_SUFFIXES) or path.is_symlink() or not path.is_file():
                continue
            yield path


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as of one moment, whoever writes to it meanwhile."""
    if not source.is_file():
        raise StoreError(f"there is no {source}; check the path")
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=60)) as database,
            closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
            # One file, with no companions that the next reader would miss.
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StoreError(f"cannot copy {source}: {error}; try again, or check the disk") from error


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    archive.addfile(info, io.BytesIO(content))


# ---- restoring one ---------------------------------------------------------------------------------------------------


def restore_backup(backup: Path, into: Path) -> tuple[Contents, list[Path]]:
    """Unpack a backup into a folder that is absent or empty; returns what was in it, and a run file per run.

    Raises RunError if the backup is incomplete or altered; then the folder is as it was.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise RunError(f"{into} exists and is not empty; choose another folder")
    into.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=into.parent, prefix=f".{into.name}.", suffix=".part"))
    try:
        contents = _unpack(backup, staging)
        files = _settle(contents, staging, into.resolve())
        if into.exists():
            into.rmdir()
        staging.rename(into)
        sync_directory(into.parent)
    except OSError as error:
        raise RunError(f"cannot restore {backup} into {into}: {error}; check the disk") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return contents, [into / file for file in files]


def _unpack(backup: Path, folder: Path) -> Contents:
    found: dict[str, Entry] = {}
    contents: Contents | None = None
    try:
        with tarfile.open(backup, mode="r:") as archive:
            for member in archive:
                if contents is not None or len(found) > MOST_FILES:
                    raise RunError(f"{backup} has more files than its index says; it was altered")
                if member.name == INDEX_NAME:
                    contents = _read_index(archive, member)
                else:
                    found[member.name] = _extract(archive, member, folder)
    except (tarfile.TarError, EOFError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{backup} is not a whole backup: {error}; take another one") from error
    if contents is None:
        raise RunError(f"{backup} has no {INDEX_NAME} at its end; it was cut short, or is no backup")
    if contents.version != VERSION:
        raise RunError(f"{backup} has version {contents.version}, this sparsyedge reads version {VERSION}")
    for entry in contents.files:
        if found.pop(entry.path, None) != entry:
            raise RunError(f"{entry.path} in {backup} is missing or not what the index says; take another backup")
    if found:
        raise RunError(f"{min(found)} in {backup} is not in its index; it was altered")
    return contents


def _read_index(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Contents:
    file = archive.extractfile(member)
    if file is None or member.size > MOST_INDEX_BYTES:
        raise RunError(f"the index of the backup has {member.size} bytes, or is no file; it was altered")
    return msgspec.json.decode(file.read(), type=Contents)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> Entry:
    """Write a file below `folder`, readable by its owner alone; whatever else the archive says of it is ignored."""
    path = PurePosixPath(member.name)
    source = archive.extractfile(member) if member.isreg() else None
    if source is None or path.is_absolute() or ".." in path.parts or "\0" in member.name:
        raise RunError(f"the backup has an entry {member.name[:200]!r} that is no plain file in it; it was altered")
    target = folder / path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sha256 = hashlib.sha256()
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        while content := source.read(COPY_BYTES):
            sha256.update(content)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return Entry(member.name, member.size, sha256.hexdigest())


def _settle(contents: Contents, staging: Path, into: Path) -> list[str]:
    """Adapt what names folders to their new places; returns the names of the run files."""
    if contents.fleet is not None and contents.fleet_folder is not None:
        for path in (staging / "fleet").rglob("*.conf"):
            text = path.read_text(encoding="utf-8").replace(contents.fleet_folder, str(into / "fleet"))
            write_atomically(path, text.encode(), private=True)
    names = []
    for number, run in enumerate(contents.runs):
        places: dict[str, Any] = {"run_dir": f"runs/{number}/run", "artifacts": f"runs/{number}/artifacts"}
        if run.config.get("authority") is not None and contents.fleet is not None:
            places["authority"] = "fleet"
        known = {key: value for key, value in {**run.config, **places}.items() if key in RunConfig.__struct_fields__}
        try:
            config = msgspec.convert(known, RunConfig)
        except msgspec.ValidationError as error:
            raise SecurityError(f"the config of run {run.name} in the backup cannot be read: {error}") from error
        name = f"{run.name}.toml" if [each.name for each in contents.runs].count(run.name) == 1 else f"{number}.toml"
        write_atomically(staging / name, toml_text(msgspec.to_builtins(config)).encode(), private=True)
        names.append(name)
    return names
