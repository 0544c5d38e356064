"""Everything that sparsyedge raises on purpose.

    SparsyedgeError            a fault we can name; the command line prints its sentence and exits with 2
    ├── ConfigError            a config file or flag: unknown key, value out of bounds, missing file
    ├── DataError              a data set: missing, wrong shape, NaN, label out of range
    │   └── UnreadableData     a file of it that is no such file, or not yet: it may be half-written
    ├── ArtifactError          exported graphs: missing file, wrong hash, other version
    ├── FrameError             a model or update from the wire that we cannot trust
    │   └── VersionError       a message whose version or feature this side lacks
    ├── DamagedFileError       a file of our own: cut, altered, or written by another version
    ├── LinkError              the broker or a blob store: unreachable, refused, silent for too long
    │   └── MessageTooLarge    one message too large for the broker; the link still works
    ├── SecurityError          an identity, token or signature: missing, refused, not trusted
    ├── FlashError             a card or bundle that we cannot make: wrong image, missing wheel, too little space
    ├── StoreError             the coordinator's SQLite files (run store and ledger): damaged, or
    │   └── StoreLocked        locked by another process for too long
    ├── TrainingError          a local job that went wrong: non-finite loss, empty data
    ├── MeterError             an energy meter that falls silent, or does not measure this board
    └── RunError               a federated run that cannot go on: too few devices, another coordinator at work

A message says what, where, the value, what is allowed and the next move.
"""

__all__ = [
    "ArtifactError",
    "ConfigError",
    "DamagedFileError",
    "DataError",
    "FlashError",
    "FrameError",
    "LinkError",
    "MessageTooLarge",
    "MeterError",
    "RunError",
    "SecurityError",
    "SparsyedgeError",
    "StoreError",
    "StoreLocked",
    "TrainingError",
    "UnreadableData",
    "VersionError",
]


class SparsyedgeError(Exception):
    """A fault we can name; its text is a sentence for the person at the terminal."""


class ConfigError(SparsyedgeError):
    """A config file or a flag asks for something unknown or not allowed."""


class DataError(SparsyedgeError):
    """A data set is unusable as it is."""


class UnreadableData(DataError):
    """A file of a data set cannot be read; it may be half-written, and whole a moment later."""


class ArtifactError(SparsyedgeError):
    """Exported artifacts are missing, altered, or made for another version."""


class FrameError(SparsyedgeError):
    """Bytes from the wire are not a frame that we can decode and trust."""


class VersionError(FrameError):
    """A message needs a version or feature that this side lacks; the text says which side to upgrade."""


class DamagedFileError(SparsyedgeError):
    """A file that sparsyedge wrote itself is damaged, or was written by another version."""


class LinkError(SparsyedgeError):
    """The broker, or a blob store, is unreachable or breaks the protocol."""


class MessageTooLarge(LinkError):
    """A message is too large for the broker. It was not sent; the link still works."""


class SecurityError(SparsyedgeError):
    """An identity, token or signature fails its check."""


class FlashError(SparsyedgeError):
    """We cannot make a card or bundle from these inputs; nothing was written."""


class TrainingError(SparsyedgeError):
    """A local training job cannot produce an update."""


class MeterError(SparsyedgeError):
    """An energy meter's figures cannot be used."""


class RunError(SparsyedgeError):
    """A federated run cannot start or go on."""


class StoreError(SparsyedgeError):
    """One of the coordinator's SQLite files is unusable."""


class StoreLocked(StoreError):
    """Another process holds one of the coordinator's SQLite files."""
