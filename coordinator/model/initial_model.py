"""Reads the initial model of a run from another run or from a file, instead of the checkpoint.

Devices train and send the weights w; a network trained elsewhere has effective weights theta
(docs/reference/methods.md). So we read a file as theta, and convert a run by way of theta if its method derives theta
from w differently. From a run of the same kind we copy w bit for bit. Zeros stay zero either way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.model_files import ModelFiles
from sparsyedge.coordinator.model.weight_files import WEIGHT_FILES, open_weights
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import ConfigError, RunError, SparsyedgeError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts, Manifest, decode_manifest
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.reparametrise import effective_weights, weights_of
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.tensors import State, first_nonfinite, model_id
from sparsyedge.edge.wire.frame import decode_frame, frame_of

__all__ = ["INITIAL_NAME", "GivenModel", "is_begun", "keep_beginning", "kept_initial_model", "read_given_model"]

INITIAL_NAME = "initial.frame"
COUNTER = "num_batches_tracked"
"""Name suffix of the batch counter that torch keeps in every BatchNorm and that nothing reads."""
TO_NPZ = "numpy.savez('model.npz', **{k: v.numpy() for k, v in model.state_dict().items()})"


class GivenModel(NamedTuple):
    """An initial model and where it comes from."""

    state: State
    origin: str


def is_begun(run_dir: Path) -> bool:
    """Return whether the directory already holds a run; if so, its initial model need not be read again."""
    try:
        Store.open(run_dir).close()
    except RunError:
        return False
    return True


def read_given_model(path: Path, artifacts: Artifacts) -> GivenModel:
    """Read the model that key `initial` names, as weights for the artifacts; raises ConfigError if it does not fit."""
    try:
        if path.is_dir():
            theirs, origin, manifest = _read_run(path, artifacts)
            _check_names(theirs, artifacts)
            _check_shapes({name: tensor.shape for name, tensor in theirs.items()}, artifacts)
            state = _translate(theirs, manifest, artifacts.manifest)
        else:
            origin = str(path)
            state = _to_weights(_read_file(path, artifacts), artifacts.manifest)
        _check_values(state, artifacts.manifest)
    except SparsyedgeError as error:
        raise ConfigError(f"key `initial` has value {str(path)!r}: {error}") from error
    # Turn -0.0 into 0.0: frames drop the sign of a zero, and devices would end up with a different model.
    unsigned = {name: state[name] + np.float32(0) for name in artifacts.manifest.prunable}
    return GivenModel({name: unsigned.get(name, state[name]) for name in artifacts.manifest.shapes}, origin)


# ---- in the run's own directory --------------------------------------------------------------------------------------


def keep_beginning(config: RunConfig, artifacts: Artifacts, initial: State) -> None:
    """Save the run's manifest and given initial model in its directory.

    The original file may change, and other runs may start from this one. Raises RunError if writing fails.
    """
    files = {MANIFEST_NAME: (artifacts.directory / MANIFEST_NAME).read_bytes()}
    if config.initial is not None:
        prunable, identity = artifacts.manifest.prunable, model_id(initial)
        files[INITIAL_NAME] = frame_of(initial, run=config.name, round_number=1, base_id=identity, prunable=prunable)
    try:
        for name, content in files.items():
            write_atomically(config.run_path / name, content)
    except OSError as error:
        raise RunError(f"cannot write to the run directory {config.run_path}: {error}; check the disk") from error


def kept_initial_model(run_dir: Path, manifest: Manifest) -> State:
    """Load the given model that this run started from; raises RunError if it is missing or damaged."""
    path = run_dir / INITIAL_NAME
    try:
        return decode_frame(path.read_bytes(), manifest.shapes).state
    except FileNotFoundError as error:
        raise RunError(f"the model that the run began from is missing: there is no {path}") from error
    except SparsyedgeError as error:
        raise RunError(f"the model that the run began from, in {path}, is damaged: {error}") from error


# ---- from another run ------------------------------------------------------------------------------------------------


def _read_run(run_dir: Path, artifacts: Artifacts) -> tuple[State, str, Manifest]:
    """Return the model of the last closed round, its origin, and its manifest."""
    with closing(Store.open(run_dir)) as store:
        run, progress, artifacts_id = store.run(), store.progress(), store.artifacts_id()
    if progress.closed_round == 0:
        raise ConfigError(f"run {run.name} has closed no round yet, so it has no model; let it close one")
    manifest = _manifest_of(run_dir, artifacts_id, artifacts)
    state = decode_frame(ModelFiles(run_dir).load(progress.closed_round + 1).frame, manifest.shapes).state
    if model_id(state) != progress.model_id:
        raise RunError(f"its model is not the one that round {progress.closed_round} ended in; it was altered")
    return state, f"run {run.name} in {run_dir}, round {progress.closed_round}", manifest


def _manifest_of(run_dir: Path, artifacts_id: str, artifacts: Artifacts) -> Manifest:
    if artifacts.id == artifacts_id:
        return artifacts.manifest
    path = run_dir / MANIFEST_NAME
    manifest = decode_manifest(path.read_bytes(), source=str(path)) if path.is_file() else None
    if manifest is None or Artifacts(run_dir, manifest).id != artifacts_id:
        raise RunError(f"the manifest of its artifacts is not in {path}, so its weights mean nothing; put it there")
    return manifest


def _translate(state: State, theirs: Manifest, ours: Manifest) -> State:
    """Convert another run's weights to ours: unchanged if both methods agree on their meaning, else via theta."""
    if _meaning(theirs.method) == _meaning(ours.method) and set(theirs.prunable) == set(ours.prunable):
        return state
    theta = {name: effective_weights(theirs.method, state[name]) for name in theirs.prunable}
    return _to_weights(state | theta, ours)


def _meaning(method: Method) -> tuple[object, ...]:
    """Return the settings that determine theta from w."""
    return (method.reparametrisation, method.beta, method.exponent)


def _to_weights(effective: State, manifest: Manifest) -> State:
    return effective | {name: weights_of(manifest.method, effective[name]) for name in manifest.prunable}


# ---- from a file -----------------------------------------------------------------------------------------------------


def _read_file(path: Path, artifacts: Artifacts) -> State:
    if not path.exists():
        raise ConfigError("there is no such file or run directory; check the path")
    if path.suffix.lower() not in WEIGHT_FILES:
        raise ConfigError(f"allowed are a run directory, .npz and .safetensors; from torch, write {TO_NPZ}")
    tensors = {name: tensor for name, tensor in open_weights(path).items() if not name.endswith(COUNTER)}
    _check_names(tensors, artifacts)
    _check_shapes({name: tensor.shape for name, tensor in tensors.items()}, artifacts)
    state: State = {}
    for name, tensor in tensors.items():
        if tensor.read is None:
            raise ConfigError(f"tensor {name} has type {tensor.dtype}; convert it to float32")
        state[name] = tensor.read()
    return state


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_names(found: Iterable[str], artifacts: Artifacts) -> None:
    names, wanted = set(found), artifacts.manifest.shapes
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names - set(wanted)), n=1)
            hint = f" (there is {near[0]})" if near else ""
            raise ConfigError(
                f"it lacks tensor {name}{hint}, which the model in {artifacts.directory} has; "
                f"names must be those of that model's state dict"
            )
    extra = sorted(names - set(wanted))
    if extra:
        raise ConfigError(
            f"it has tensor {extra[0]}, which the model in {artifacts.directory} lacks; "
            f"leave it out, or export the model that has it"
        )


def _check_shapes(found: dict[str, tuple[int, ...]], artifacts: Artifacts) -> None:
    for name, shape in artifacts.manifest.shapes.items():
        if found[name] != shape:
            raise ConfigError(
                f"tensor {name} has shape {found[name]}, and {shape} in the model in {artifacts.directory}; "
                f"give a model of that shape, or export one of this"
            )


def _check_values(state: State, manifest: Manifest) -> None:
    bad = first_nonfinite(state)
    if bad is not None:
        raise ConfigError(f"tensor {bad} holds NaN, infinity or a number beyond float32; give a model that is finite")
    for norm in manifest.batch_norms:
        if (state[norm.variance] < 0).any():
            raise ConfigError(f"tensor {norm.variance} holds a negative variance; give a model without")
