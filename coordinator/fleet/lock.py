"""One coordinator per run directory: a lock that the operating system releases when the holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import make_private_folder

__all__ = ["LOCK_NAME", "RunLock", "is_led"]

LOCK_NAME = "coordinator.lock"


def is_led(run_dir: Path) -> bool:
    """Whether a process leads the run in the directory."""
    try:
        handle = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


class RunLock:
    """Locks the run directory during a `with` block; creates it if needed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._handle = -1

    def __enter__(self) -> Self:
        path = self._run_dir / LOCK_NAME
        try:
            make_private_folder(self._run_dir)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunError(
                f"cannot make the run directory {self._run_dir}: {error}; choose another `run_dir`"
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            raise RunError(
                f"process {holder or 'unknown'} already leads the run in {self._run_dir}; "
                f"end it with `sparsyedge coordinator stop {self._run_dir}`, or choose another `run_dir`"
            ) from error
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The file stays: if we removed it, two coordinators could lock two files of the same name.
        os.close(self._handle)
