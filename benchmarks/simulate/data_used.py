"""Records the data of a run, to refuse resuming it with other data."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from sparsyedge.edge.data import Dataset
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.storage import write_atomically

__all__ = ["DataUsed", "keep_to_data", "read_data_used"]

FILE_NAME = "data.json"


class DataUsed(msgspec.Struct, frozen=True, kw_only=True):
    """A data set as found on disk; its name alone may stand for a subset."""

    train: int
    """Samples."""
    test: int
    sha256: str
    """Hash of labels and inputs, training part first."""

    def __str__(self) -> str:
        return f"{self.train:,} + {self.test:,} samples, sha256 {self.sha256[:12]}"


def keep_to_data(run_dir: Path, dataset: Dataset, *, begun: bool) -> None:
    """Record the data of a new run; raise RunError if the run started with other data."""
    found, noted = _look_at(dataset), read_data_used(run_dir)
    if not begun or noted is None:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir / FILE_NAME, msgspec.json.encode(found))
    elif noted != found:
        raise RunError(
            f"the run in {run_dir} was begun with other data: {dataset.name} had {noted}, and has {found} now; name "
            "the folder of that data with `data_dir` or $SPARSYEDGE_DATA, or begin another run with another `run_dir`"
        )


def read_data_used(run_dir: Path) -> DataUsed | None:
    """The data that the run started with; None if not recorded."""
    path = run_dir / FILE_NAME
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=DataUsed)
    except msgspec.DecodeError as error:
        raise RunError(f"{path} does not say what data the run was begun with ({error}); remove the run") from error


def _look_at(dataset: Dataset) -> DataUsed:
    digest = hashlib.sha256()
    for samples in (dataset.train, dataset.test):
        for array in (samples.y, samples.x):
            digest.update(np.ascontiguousarray(array).data)
    return DataUsed(train=len(dataset.train), test=len(dataset.test), sha256=digest.hexdigest())
