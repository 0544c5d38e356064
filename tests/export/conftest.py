"""A small model, exported once per test process: the tests of graphs, sessions and training share it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparsyedge.edge.artifacts import Artifacts, Method
from sparsyedge.export.build import build_artifacts
from sparsyedge.export.models import ModelSpec

TINY = ModelSpec("resnet18", width=4, classes=5, input_shape=(3, 16, 16))


@pytest.fixture(scope="session")
def export_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Artifacts]:
    """Artifacts of the tiny model for a method, without the comparison with torch that `sparsyedge export` makes."""
    made: dict[tuple[float, bool, float], Artifacts] = {}

    def export(*, beta: float = 1.25, prune_activations: bool = True, weight_decay: float = 1e-3) -> Artifacts:
        key = (beta, prune_activations, weight_decay)
        if key not in made:
            method = Method(
                name="sparsyfed",
                beta=beta,
                sparsity=0.9,
                weight_decay=weight_decay,
                prune_activations=prune_activations,
            )
            directory: Path = tmp_path_factory.mktemp("tiny") / "artifacts"
            made[key], _ = build_artifacts(TINY, method, directory, seed=3, check=lambda artifacts: None)
        return made[key]

    return export


@pytest.fixture(scope="session")
def tiny(export_tiny: Callable[..., Artifacts]) -> Artifacts:
    return export_tiny()
