"""A rollout on disk, in the authority's folder: its state, its files, who drives it, and what the operator asks for.

rollout/state.json   the state, written before any order that follows from it is sent
rollout/sets.json    what is installed: the signed part of the release
rollout/files/       the wheels by their hash
rollout/store.json   the web server that has the wheels too, if there is one
rollout/blobs.json   what was put there
rollout/lock         held by the process that drives the rollout
rollout/request      what another process asks of it: halt or return
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.rollout.plan import Rollout
from sparsyedge.edge.errors import DamagedFileError, RunError
from sparsyedge.edge.protocol.releases import WheelSet
from sparsyedge.edge.storage import remove_leftovers, write_atomically

__all__ = ["Request", "RolloutFile"]

Request = Literal["halt", "return"]


class RolloutFile:
    """The folder `rollout` of an authority."""

    def __init__(self, authority: Path) -> None:
        self.folder = authority / "rollout"
        self.files = self.folder / "files"

    def read(self) -> Rollout | None:
        """The last rollout; None if there was none yet."""
        path = self.folder / "state.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Rollout)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedFileError(
                f"cannot read {path}: {error}; remove it and start the rollout again: devices that have the release "
                f"keep it"
            ) from error

    def write(self, rollout: Rollout) -> None:
        """Make a state durable."""
        write_atomically(self.folder / "state.json", msgspec.json.encode(rollout), private=True)

    def read_sets(self) -> tuple[WheelSet, ...]:
        """What the rollout installs."""
        try:
            return msgspec.json.decode((self.folder / "sets.json").read_bytes(), type=tuple[WheelSet, ...])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedFileError(
                f"cannot read {self.folder / 'sets.json'}: {error}; start the rollout again"
            ) from error

    def write_sets(self, sets: tuple[WheelSet, ...]) -> None:
        """Keep what the rollout installs."""
        write_atomically(self.folder / "sets.json", msgspec.json.encode(sets))

    def read_store(self) -> BlobsConfig | None:
        """The web server that has the rollout's files too; None if there is none."""
        path = self.folder / "store.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=BlobsConfig)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedFileError(f"cannot read {path}: {error}; start the rollout again") from error

    def write_store(self, store: BlobsConfig | None) -> None:
        """Keep which web server has the rollout's files."""
        path = self.folder / "store.json"
        if store is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, msgspec.json.encode(store))

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Be the one process that drives the rollout; raises RunError if another does."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(
                    "another `sparsyedge fleet` drives the rollout of this fleet; see `sparsyedge fleet status`"
                ) from error
            remove_leftovers(self.folder)
            yield

    def ask(self, request: Request) -> None:
        """Ask the process that drives the rollout for something."""
        write_atomically(self.folder / "request", request.encode())

    def take_request(self) -> Request | None:
        """What another process asks for; each request is returned once."""
        path = self.folder / "request"
        try:
            asked = path.read_text()
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        return "return" if asked == "return" else "halt"
