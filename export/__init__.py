"""From a torch model to ONNX training artifacts with a manifest, checked against torch.

from pathlib import Path
from sparsyedge.export import ModelSpec, export_model, make_method

spec = ModelSpec("resnet18", width=8, classes=10, input_shape=(1, 8, 8))
artifacts, parity = export_model(spec, make_method("sparsyfed", sparsity=0.95), Path("artifacts"))
"""

from typing import TYPE_CHECKING

from sparsyedge.edge.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparsyedge.edge.model.methods import make_method
    from sparsyedge.edge.model.training import make_training
    from sparsyedge.export.checked_build import export_model
    from sparsyedge.export.model_spec import ModelSpec

__all__ = ["ModelSpec", "export_model", "make_method", "make_training"]

# `sparsyedge --help` reads this folder's list of commands and must not wait for torch.
__getattr__ = lazy_names(
    __name__,
    {
        "ModelSpec": "sparsyedge.export.model_spec",
        "export_model": "sparsyedge.export.checked_build",
        "make_method": "sparsyedge.edge.model.methods",
        "make_training": "sparsyedge.edge.model.training",
    },
)
