"""A device's slots on disk: which is in use, which is free, and the record of what it has seen and done.

`launch.py` started this process and says through its environment where the slots are; the rules of trials are there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from sparsyedge.edge.faults import crash_point
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.upgrade import launch

__all__ = ["BOOTS", "Record", "Returned", "Slots"]

RECORD_NAME = "record.json"
BOOTS = 2
"""How often the launcher starts a slot on trial before it goes back."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a device remembers of releases; both versions of an upgrade read it, so fields only ever come."""

    release_version: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The highest version of a release that it has seen."""
    order: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The serial of the last order that it has followed."""
    latest_unix_s: float = 0.0
    """The latest time that the operator has signed; a board's clock may be behind it."""
    stage: str = "waiting"
    reason: str = ""
    bundle: str = ""
    """What the last order was about."""
    bundles: dict[str, str] = {}
    """What is installed in the slots `a` and `b`."""
    previous: dict[str, str] = {}
    """The slot that was in use before `a` and `b`, as long as it holds what it held then."""


class Returned(msgspec.Struct, frozen=True):
    """The launcher's word about a slot that it has given up."""

    bundle: str
    reason: str


class Slots:
    """The folder of slots, as the device in one of them sees it."""

    def __init__(self, folder: Path, own: str) -> None:
        self.folder = folder
        self.own = own
        """The slot that this process runs from."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Slots | None:
        """The slots that the launcher has named; None if no launcher started this process."""
        found = os.environ if environment is None else environment
        folder = found.get(launch.FOLDER_VARIABLE)
        return cls(Path(folder), found.get(launch.SLOT_VARIABLE, launch.FACTORY)) if folder else None

    @property
    def free(self) -> Path:
        """The slot for the next release: never the one in use."""
        return self.folder / next(name for name in launch.SLOTS if name != self.own)

    @property
    def wheels(self) -> Path:
        """Where downloaded files are kept, by their hash."""
        return self.folder / "wheels"

    def record(self) -> Record:
        """What the device remembers; a record that cannot be read is an empty one."""
        try:
            return msgspec.json.decode((self.folder / RECORD_NAME).read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Record()

    def keep(self, record: Record) -> None:
        """Write the record; it survives a power cut."""
        write_atomically(self.folder / RECORD_NAME, msgspec.json.encode(record), private=True)

    @property
    def trial(self) -> launch.Trial | None:
        """The trial of this very slot; None if it is not on trial."""
        trial = launch.read_trial(self.folder)
        return trial if trial is not None and trial.slot == self.own else None

    def clear_free(self) -> Path:
        """Empty the free slot and return its place."""
        shutil.rmtree(self.free, ignore_errors=True)
        return self.free

    def begin_trial(self, bundle: str, *, limit_s: float) -> None:
        """Have the next start run the free slot on trial. The trial is noted first: no slot starts without one."""
        launch.write_trial(self.folder, launch.Trial(self.free.name, self.own, bundle, BOOTS, limit_s))
        crash_point("before-switch")
        launch.switch(self.folder, self.free.name)
        crash_point("after-switch")

    def end_trial(self) -> None:
        """Keep this slot: the coordinator has acknowledged it."""
        crash_point("before-keep")
        launch.end_trial(self.folder)
        (self.folder / launch.RETURNED_NAME).unlink(missing_ok=True)

    def switch_back(self, slot: str) -> None:
        """Have the next start run the slot from before, without a trial."""
        launch.end_trial(self.folder)
        launch.switch(self.folder, slot)

    def can_return_to(self, slot: str | None) -> bool:
        """Whether a slot is there to go back to."""
        if slot == self.own or slot not in launch.SLOTS:
            return slot == launch.FACTORY != self.own
        return (self.folder / slot / "bin" / "python").exists()

    def take_returned(self) -> Returned | None:
        """The launcher's word about a slot that it has given up; None if there is none. Removes it."""
        path = self.folder / launch.RETURNED_NAME
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Returned)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = Returned("", "went back for a reason that cannot be read")
        path.unlink(missing_ok=True)
        return found
