"""SQLite connections with readable errors: they wait for a locked file and name a damaged one."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from sparsyedge.edge.errors import StoreError, StoreLocked

__all__ = ["Database", "closed_on_error", "open_database"]

log = logging.getLogger(__name__)

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
MAX_HOLDERS = 3

Result = TypeVar("Result")


class Database(sqlite3.Connection):
    """A connection that raises StoreLocked for a locked file and StoreError for a damaged one; passes other errors on.

    A statement or commit that hits a lock has changed nothing, so we can retry it.
    """

    name = "the database"
    path = Path()
    timeout_s = 0.0
    keep_waiting: Callable[[], bool] | None = None
    """Called after each timeout; returns whether to wait again. None: never wait again."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        # The usual case first: there are several statements per update.
        try:
            return super().execute(sql, parameters)
        except sqlite3.Error as error:
            return self._patiently(partial(super().execute, sql, parameters), problem=error)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return self._patiently(partial(super().executemany, sql, list(parameters)))

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        return self._patiently(partial(super().executescript, sql_script))

    def commit(self) -> None:
        self._patiently(super().commit)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Literal[False]:
        # sqlite3's own __exit__ would roll back a transaction that it cannot commit at once.
        try:
            if kind is None:
                self.commit()
        finally:
            if self.in_transaction:
                self.rollback()
        return False

    def _patiently(self, act: Callable[[], Result], problem: sqlite3.Error | None = None) -> Result:
        """Act until the file is not locked; `problem` is what the first attempt came to, if there was one."""
        waited_s, told = 0.0, False
        while True:
            try:
                with self.explained():
                    if problem is not None:
                        raise problem
                    result = act()
            except StoreLocked as error:
                waited_s, problem = waited_s + self.timeout_s, None
                if self.keep_waiting is None or not self.keep_waiting():
                    raise
                if not told:
                    log.warning("%s; waiting for it", error)
                told = True
            else:
                if told:
                    log.info("%s is free again after more than %g s", self.name, waited_s)
                return result

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors about a locked or damaged file into a readable sentence."""
        try:
            yield
        except sqlite3.Error as error:
            # The last byte of an extended code is the primary error code.
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if code in LOCKED:
                raise StoreLocked(
                    f"{self.name} {self.path} has been locked for {self.timeout_s:g} s{_holders(self.path)}; end "
                    f"what holds it, or try again later"
                ) from error
            if code in DAMAGED:
                raise StoreError(
                    f"{self.name} {self.path} is damaged: {error}; restore it from a backup, or save what is left with "
                    f"`sqlite3 {self.path} .recover | sqlite3 {self.path}.new` and look at that"
                ) from error
            raise


def open_database(path: Path, *, name: str, timeout_s: float, any_thread: bool = False) -> Database:
    """Open the SQLite file at `path`, which must exist; messages refer to it as `name`."""
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=timeout_s,
        check_same_thread=not any_thread,
        factory=Database,
    )
    database.name, database.path, database.timeout_s = name, path, timeout_s
    database.row_factory = sqlite3.Row
    return database


@contextmanager
def closed_on_error(database: Database) -> Iterator[None]:
    """Close a database that its owner cannot use: nobody else would, and Python 3.13 complains about that."""
    try:
        yield
    except BaseException:
        database.close()
        raise


def _holders(path: Path) -> str:
    """Name the other processes that have the file open and are visible to this user: one of them has the lock."""
    try:
        wanted = path.stat()
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:
        return ""
    found = []
    for process in processes:
        if int(process.name) != os.getpid() and _has_open(process, (wanted.st_dev, wanted.st_ino)):
            found.append(f"process {process.name} ({_command(process)})")
    names = ", ".join(found[:MAX_HOLDERS]) + (" and others" if len(found) > MAX_HOLDERS else "")
    return f"; {names} {'has' if len(found) == 1 else 'have'} it open" if found else ""


def _has_open(process: Path, file: tuple[int, int]) -> bool:
    try:
        for handle in (process / "fd").iterdir():
            status = handle.stat()
            if (status.st_dev, status.st_ino) == file:
                return True
    except OSError:
        # Another user's process, or one that has just ended.
        return False
    return False


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "gone"
