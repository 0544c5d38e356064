"""From a torch model to ONNX training artifacts with a manifest, checked against torch.

from pathlib import Path
from sparsyedge.export import ModelSpec, export_model, make_method

spec = ModelSpec("resnet18", width=8, classes=10, input_shape=(1, 8, 8))
artifacts, parity = export_model(spec, make_method("sparsyfed", sparsity=0.95), Path("artifacts"))
"""

from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.models import ModelSpec

__all__ = ["ModelSpec", "export_model", "make_method"]
