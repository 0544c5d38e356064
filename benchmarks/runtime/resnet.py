"""The model that the benchmarks of a runtime use."""

from __future__ import annotations

from pathlib import Path

from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.model.artifacts import Artifacts

__all__ = ["SPARSITY", "export_resnet"]

SPARSITY = 0.95


def export_resnet(width: int, folder: Path) -> Artifacts:
    """A fresh ResNet-18 for images of CIFAR-10, for SparsyFed."""
    from sparsyedge.edge.model.methods import make_method
    from sparsyedge.export.build import build_artifacts
    from sparsyedge.export.model_spec import ModelSpec

    method = make_method("sparsyfed", sparsity=SPARSITY)
    spec = ModelSpec.for_data("resnet18", width, DATASETS["cifar10"].form)
    return build_artifacts(spec, method, folder, seed=0, check=lambda *made: None)[0]
