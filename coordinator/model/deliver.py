"""Delivers the model of a run: as ONNX and as a frame, in the run directory."""

from __future__ import annotations

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.evaluate import Evaluate
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.inference.preprocessing import MODEL_NAME
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.storage import sha256_file, write_atomically
from sparsyedge.edge.tensors import global_sparsity

__all__ = ["FRAME_NAME", "deliver_model"]

FRAME_NAME = "model.frame"
"""What a run's folder calls the model that the run ended with."""


def deliver_model(
    config: RunConfig, artifacts: Artifacts, model: GlobalModel, *, store: Store, evaluate: Evaluate
) -> str:
    """Write the present model's files after the last recorded round; returns the SHA-256 of model.onnx."""
    run_dir, state = config.run_path, model.averaged()
    last = store.rounds()[-1]
    quality = {"accuracy": last.test_accuracy, "rmse": last.test_rmse, "r_squared": last.test_r_squared}
    if last.test_accuracy is None and last.test_rmse is None:
        # A stopped run may end with a round that was not evaluated.
        found = model.lend(state, evaluate)
        quality = {"accuracy": found.accuracy, "rmse": found.rmse, "r_squared": found.r_squared}
    sparsity = last.global_sparsity if state is model.state else global_sparsity(state, artifacts.manifest.prunable)
    origin = Origin(run=config.name, round=last.round, sparsity=sparsity, **quality)
    write_atomically(run_dir / FRAME_NAME, model.averaged_frame())
    write_models(run_dir, state, artifacts, origin)
    return sha256_file(run_dir / MODEL_NAME)
