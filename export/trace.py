"""Traces a torch module into a forward ONNX graph of standard ops."""

from __future__ import annotations

import io
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import nn

from sparsyedge.export.model_spec import ModelSpec
from sparsyedge.export.quiet import quiet

__all__ = ["INPUT_NAME", "LOGITS_NAME", "OPSET", "trace"]

OPSET = 17
INPUT_NAME = "x"
LOGITS_NAME = "logits"
# Any batch size above 1 works; at 1, some exporters bake the size in.
TRACE_BATCH = 2


def trace(model: nn.Module, spec: ModelSpec, *, training: bool) -> onnx.ModelProto:
    """The forward graph; every parameter and buffer is an initializer under its own name. The model is unchanged."""
    # Tracing in training mode updates the running statistics once, in the model and in the graph.
    before = {name: value.clone() for name, value in model.state_dict().items()}
    was_training = model.training
    model.train(training)
    buffer: Any = io.BytesIO()  # the exporter takes it, its annotation does not
    with quiet():
        # The tracing exporter is deprecated, but its successor cannot write training graphs.
        torch.onnx.export(
            model,
            (torch.zeros(TRACE_BATCH, *spec.input_shape),),
            buffer,
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL,
            do_constant_folding=False,
            opset_version=OPSET,
            input_names=[INPUT_NAME],
            output_names=[LOGITS_NAME],
            dynamic_axes={INPUT_NAME: {0: "batch"}, LOGITS_NAME: {0: "batch"}},
        )
    model.load_state_dict(before)
    model.train(was_training)
    traced = onnx.load_model_from_string(buffer.getvalue())
    for tensor in traced.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(before[tensor.name].numpy(), tensor.name))
    return traced
