"""model.json: what a device's model.onnx is, where it comes from, how good and how fast it is."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from sparsyedge.edge.data.dataset import Task
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.inference.description import Description
from sparsyedge.edge.inference.predictor import Predictor
from sparsyedge.edge.inference.preprocessing import DataType, Layout
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.training import onnx_runtime

__all__ = ["NOTE_NAME", "Input", "ModelKind", "ModelNote", "measure_ms", "note_of", "read_note"]

NOTE_NAME = "model.json"
NOTE_VERSION = 1
MOST_NOTE_BYTES = 16 << 20
WARM_UP_RUNS = 2
MEASURED_RUNS = 5

ModelKind = Literal["global", "personal"]
Name = Annotated[str, msgspec.Meta(max_length=1000)]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """What the model takes: the graph does the preprocessing itself."""

    layout: Layout
    dtype: DataType
    shape: tuple[int, ...]
    """Of one sample, with channels first."""
    scaling: Name


class ModelNote(msgspec.Struct, frozen=True, kw_only=True):
    """The content of model.json."""

    version: int = NOTE_VERSION
    kind: ModelKind
    """The fleet's model, or this device's own after training."""
    device: Name
    run: Name
    round: int
    """The last round that went into it."""
    model_id: str
    """The hash of the tensors it was made from; the coordinator's record of the round has the same."""
    sha256: str
    """Of model.onnx."""
    bytes: int
    task: Task
    names: tuple[Name, ...]
    """The classes, or the outputs of a regression, in the order of the answers."""
    accuracy: float | None
    """The coordinator's, on the run's test samples; null if it did not say."""
    rmse: float | None
    r_squared: float | None
    sparsity: float
    method: Name
    input: Input
    predict_ms: float
    """The median over a few runs with one sample each, measured when the model was put in place."""
    threads: int
    runtime: Name
    written: Name
    """When, in UTC."""


_DECODER: msgspec.json.Decoder[ModelNote] = msgspec.json.Decoder(ModelNote)


def note_of(path: Path, *, kind: ModelKind, device: str, model_id: str, threads: int) -> ModelNote:
    """Open the model at `path`, try it, and describe it; raises ArtifactError if it does not answer."""
    predictor = Predictor(path, threads=threads)
    found: Description = predictor.description
    return ModelNote(
        kind=kind,
        device=device,
        run=found.run,
        round=found.round,
        model_id=model_id,
        sha256=sha256_file(path),
        bytes=path.stat().st_size,
        task=found.task,
        names=found.names,
        accuracy=found.accuracy,
        rmse=found.rmse,
        r_squared=found.r_squared,
        sparsity=found.sparsity,
        method=found.method,
        input=Input(layout=found.layout, dtype=found.dtype, shape=predictor.sample, scaling=found.scaling),
        predict_ms=round(measure_ms(predictor), 3),
        threads=threads,
        runtime=onnx_runtime.RUNTIME,
        written=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def measure_ms(predictor: Predictor, *, runs: int = MEASURED_RUNS) -> float:
    """The median milliseconds for a batch of one."""
    batch = np.zeros((1, *predictor.batch_shape), dtype=predictor.description.dtype)
    seconds = []
    for _ in range(WARM_UP_RUNS + runs):
        started_s = time.perf_counter()
        predictor.answers(batch)
        seconds.append(time.perf_counter() - started_s)
    return 1e3 * statistics.median(seconds[WARM_UP_RUNS:])


def read_note(path: Path) -> ModelNote:
    """Read a model.json; raises ArtifactError if it is none."""
    try:
        if path.stat().st_size > MOST_NOTE_BYTES:
            raise ArtifactError(f"{path} has more than {MOST_NOTE_BYTES:,} bytes, which no model.json has")
        return _DECODER.decode(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is not the model.json of a device: {error}") from error
