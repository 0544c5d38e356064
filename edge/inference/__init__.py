"""The model in use: a run's delivered files, their descriptions, and inference-only sessions.

Needs neither torch nor onnx nor protobuf: a device can write its model too.

    from sparsyedge.edge.inference import Predictor, evaluate

    evaluate("runs/first/model.onnx", "my-data.npz").accuracy
"""

from typing import TYPE_CHECKING

from sparsyedge.edge.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparsyedge.edge.inference.predictor import Predictor
    from sparsyedge.edge.inference.score import Score, evaluate

__all__ = ["Predictor", "Score", "evaluate"]

# Code that only writes a model does not need onnxruntime.
__getattr__ = lazy_names(
    __name__,
    {
        "Predictor": "sparsyedge.edge.inference.predictor",
        "Score": "sparsyedge.edge.inference.score",
        "evaluate": "sparsyedge.edge.inference.score",
    },
)
