"""Builds artifacts and keeps them only if they agree with torch."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.methods import Method
from sparsyedge.edge.model.training import PLAIN_SGD, Training
from sparsyedge.export.agreement import Parity, verify
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.model_spec import AS_IT_IS, ModelChoices, ModelSpec

__all__ = ["export_model"]


def export_model(
    spec: ModelSpec,
    method: Method,
    directory: Path,
    *,
    seed: int = 0,
    training: Training = PLAIN_SGD,
    choices: ModelChoices = AS_IT_IS,
) -> tuple[Artifacts, Parity]:
    """Export artifacts that train like torch into `directory`; leave nothing there if they do not.

    `seed` determines the initial weights, `training` how devices take steps, `choices` what else is decided about the
    model. The second result says how closely the graphs and torch agree.
    """
    fewest = 1 if spec.task == "regression" else 2
    if spec.width < 1 or spec.classes < fewest or min(spec.input_shape) < 1:
        many = "outputs" if spec.task == "regression" else "classes"
        raise ConfigError(
            f"width {spec.width}, {many} {spec.classes}, input shape {spec.input_shape}: "
            f"width and shape must be at least 1, {many} at least {fewest}"
        )
    return build_artifacts(spec, method, directory, seed=seed, check=verify, training=training, choices=choices)
