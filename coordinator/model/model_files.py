"""The global models of a run on disk: the present one and the last few, each in one file that is complete or absent.

    models/<round>.model     the model that the round starts from

A file depends only on the files before it and on the accepted updates. So if a crash makes us close a round again, we
write the same file again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import write_atomically

__all__ = ["KEPT_BASES", "ModelFiles", "Version"]

KEPT_BASES = 3
"""Versions kept before the present one. A device that holds one of them gets a difference to it."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the global model, and what its successor needs to know."""

    round: int
    """The round that starts from it."""
    model_id: str
    frame: bytes
    """The model as a frame that stands alone, without loss."""
    delta: bytes = b""
    """The same model in the run's codec, for devices that hold the version before; empty for the first."""
    residual: bytes = b""
    """What the codec has rounded away so far, packed; the next version adds it."""
    optimizer: bytes = b""
    """What the server optimizer remembers, packed."""
    group_masks: bytes = b""
    """The fixed masks of groups with targets of their own, packed; empty if there are none."""


class ModelFiles:
    """The folder `models/` of a run."""

    def __init__(self, run_dir: Path, *, averaged: int = 1) -> None:
        """With `averaged`, keep enough versions to average as many."""
        self._folder = run_dir / "models"
        self._kept = max(KEPT_BASES, averaged)

    def save(self, version: Version) -> None:
        """Save a version durably, and remove those too old to be a base."""
        write_atomically(self._path(version.round), msgspec.msgpack.encode(version))
        for number in self.rounds():
            if not version.round - self._kept <= number <= version.round:
                self._path(number).unlink()

    def load(self, round_number: int) -> Version:
        """Return the version that a round starts from; raises RunError if it is missing or damaged."""
        path = self._path(round_number)
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=Version)
        except FileNotFoundError as error:
            raise RunError(f"the model of round {round_number} is missing: there is no {path}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunError(f"the model of round {round_number} in {path} is damaged: {error}") from error

    def before(self, round_number: int, *, since: int = 1) -> Iterator[Version]:
        """Yield the versions before a round's, the latest first; reads none before round `since`."""
        for number in reversed(self.rounds()):
            if max(since, round_number - KEPT_BASES) <= number < round_number:
                yield self.load(number)

    def last_frames(self, round_number: int, count: int, *, since: int) -> Iterator[bytes]:
        """Yield the frames of up to `count` versions, the last of them a round's; none before round `since`."""
        for number in self.rounds():
            if max(since, round_number - count + 1) <= number <= round_number:
                yield self.load(number).frame

    def rounds(self) -> list[int]:
        """Return the rounds whose models are on disk, in order."""
        return sorted(int(path.stem) for path in self._folder.glob("*.model") if path.stem.isdecimal())

    def _path(self, round_number: int) -> Path:
        return self._folder / f"{round_number}.model"
