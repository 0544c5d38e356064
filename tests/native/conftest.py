"""Graphs of a single op, built and run in this interpreter's ONNX Runtime."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import TensorProto, helper

from sparsyedge.edge.native import OP_DOMAIN, library_path

FloatArray = npt.NDArray[np.float32]
Dims = list[int | str | None] | None


def build_model(op: str, input_shapes: list[Dims]) -> bytes:
    names = [f"input{i}" for i in range(len(input_shapes))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["output"], name=f"the_{op}", domain=OP_DOMAIN)],
        op,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, input_shapes, strict=True)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OP_DOMAIN, 1)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return model


def open_session(model: bytes, threads: int = 1) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are asserted on, not read
    options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="session")
def op_model() -> Callable[[str, list[Dims]], bytes]:
    """op_model(op, input shapes) gives a serialised graph of one node; a shape of None is unknown."""
    return build_model


@pytest.fixture(scope="session")
def model_session() -> Callable[[bytes], Any]:
    """model_session(serialised graph) gives a session that knows our ops."""
    return open_session


@pytest.fixture(scope="session")
def run_op() -> Callable[..., FloatArray]:
    """run_op(op, *inputs, threads=1) gives the output of one node; numbers are passed as arrays of shape [1]."""

    @cache
    def session(op: str, input_count: int, threads: int) -> Any:
        return open_session(build_model(op, [None] * input_count), threads)

    def run(op: str, *inputs: FloatArray | float, threads: int = 1) -> FloatArray:
        arrays = [x if isinstance(x, np.ndarray) else np.array([x], np.float32) for x in inputs]
        feeds = {f"input{i}": array for i, array in enumerate(arrays)}
        (output,) = session(op, len(arrays), threads).run(None, feeds)
        assert isinstance(output, np.ndarray)
        return output

    return run
