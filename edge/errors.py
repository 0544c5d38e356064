"""Everything that sparsyedge raises on purpose.

    SparsyedgeError            a fault we can name; the command line prints its sentence and exits with 2
    ├── ConfigError            a config file or flag: unknown key, value out of bounds, missing file
    ├── DataError              a data set: missing, wrong shape, NaN, label out of range
    ├── ArtifactError          exported graphs: missing file, wrong hash, other version
    ├── FrameError             a model or update that came over the wire and cannot be trusted
    │   └── VersionError       a message of a version, or with a feature, that this side does not have
    ├── DamagedFileError       a file of our own: cut, altered, or written by another version
    ├── LinkError              the broker: unreachable, refused, silent for too long
    │   └── MessageTooLarge    one message that the broker would not take; the link is as good as before
    ├── SecurityError          an identity, token or signature: missing, refused, not the one that is trusted
    ├── FlashError             a card or a bundle that cannot be made: wrong image, missing wheel, too little space
    ├── StoreError             the coordinator's SQLite files, its run store and its ledger: damaged, or
    │   └── StoreLocked        in the hands of another process for too long
    ├── TrainingError          a local job that went wrong: non-finite loss, empty data
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
    "RunError",
    "SecurityError",
    "SparsyedgeError",
    "StoreError",
    "StoreLocked",
    "TrainingError",
    "VersionError",
]


class SparsyedgeError(Exception):
    """A fault we can name; its text is a sentence for the person at the terminal."""


class ConfigError(SparsyedgeError):
    """A config file or a flag asks for something that does not exist or is not allowed."""


class DataError(SparsyedgeError):
    """A data set cannot be used as it is."""


class ArtifactError(SparsyedgeError):
    """Exported artifacts are missing, altered, or made for another version."""


class FrameError(SparsyedgeError):
    """Bytes from the wire are not a frame that we can decode and trust."""


class VersionError(FrameError):
    """A message needs a version or a feature that this side does not have; the text says which side to upgrade."""


class DamagedFileError(SparsyedgeError):
    """A file that sparsyedge wrote itself is damaged, or was written by another version."""


class LinkError(SparsyedgeError):
    """The broker cannot be reached or does not do what the protocol needs."""


class MessageTooLarge(LinkError):
    """A message is larger than the broker takes; it was not sent, and the link is as good as before."""


class SecurityError(SparsyedgeError):
    """Somebody or something is not who or what it must be."""


class FlashError(SparsyedgeError):
    """A card or a bundle cannot be made from what is there; nothing was written."""


class TrainingError(SparsyedgeError):
    """A local training job cannot produce an update."""


class RunError(SparsyedgeError):
    """A federated run cannot start or go on."""


class StoreError(SparsyedgeError):
    """A SQLite file of the coordinator's cannot be used."""


class StoreLocked(StoreError):
    """A SQLite file of the coordinator's is in the hands of another process."""
