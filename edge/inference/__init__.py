"""The model in use: the files a run delivers, what they say about themselves, and sessions that only infer.

Needs neither torch nor the onnx package nor protobuf, so that a device can write its model too.

    from sparsyedge.edge.inference import Predictor, evaluate

    evaluate("runs/first/model.onnx", "my-data.npz").accuracy
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsyedge.edge.inference.predictor import Predictor
    from sparsyedge.edge.inference.score import Score, evaluate

__all__ = ["Predictor", "Score", "evaluate"]

_HOMES = {"Predictor": "predictor", "Score": "score", "evaluate": "score"}


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: whoever only writes a model does without onnxruntime."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
