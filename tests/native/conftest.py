"""Graphs of a single op, built and run in this interpreter's ONNX Runtime."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from fixtures.op_cases.case import OpCase
from onnx import TensorProto, helper

from sparsyedge.edge.native import OP_DOMAIN, library_path

Array = npt.NDArray[Any]
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
    options.log_severity_level = 4  # tests assert on errors; nobody reads the log
    options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="session")
def op_model() -> Callable[[str, list[Dims]], bytes]:
    """op_model(op, input shapes) serialises a graph of one node; a shape of None is unknown."""
    return build_model


@pytest.fixture(scope="session")
def model_session() -> Callable[[bytes], Any]:
    """model_session(serialised graph) opens a session with our ops."""
    return open_session


@pytest.fixture(scope="session")
def run_op() -> Callable[..., FloatArray]:
    """run_op(op, *inputs, threads=1) returns the output of one node; numbers become arrays of shape [1]."""

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


def build_node(op: str, dtypes: Sequence[Any], outputs: Sequence[bool], attributes: dict[str, Any]) -> bytes:
    """Serialises a graph of one node; leaves inputs of dtype None and unwanted outputs unconnected."""
    inputs = {f"input{i}": dtype for i, dtype in enumerate(dtypes) if dtype is not None}
    input_names = [f"input{i}" if dtype is not None else "" for i, dtype in enumerate(dtypes)]
    output_names = [f"output{i}" if wanted else "" for i, wanted in enumerate(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, input_names, output_names, name=f"the_{op}", domain=OP_DOMAIN, **attributes)],
        op,
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(d), None) for n, d in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in output_names if name],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OP_DOMAIN, 1)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return model


@pytest.fixture(scope="session")
def node_model() -> Callable[..., bytes]:
    """node_model(op, dtypes, outputs, attributes) serialises a graph of one node."""
    return build_node


@pytest.fixture(scope="session")
def run_node() -> Callable[..., list[Array]]:
    """run_node(op, inputs, outputs=1, threads=1, **attributes) returns the outputs of one node.

    An input of None is not connected. `outputs` is a number, or one bool per output: whether it is wanted.
    """

    @cache
    def session(op: str, dtypes: Any, outputs: Any, attributes: Any, threads: int) -> Any:
        return open_session(build_node(op, dtypes, outputs, dict(attributes)), threads)

    def run(
        op: str, inputs: Sequence[Array | None], outputs: int | Sequence[bool] = 1, threads: int = 1, **attributes: Any
    ) -> list[Array]:
        wanted = (True,) * outputs if isinstance(outputs, int) else tuple(outputs)
        dtypes = tuple(None if x is None else x.dtype for x in inputs)
        feeds = {f"input{i}": x for i, x in enumerate(inputs) if x is not None}
        results: list[Array] = session(op, dtypes, wanted, tuple(sorted(attributes.items())), threads).run(None, feeds)
        return results

    return run


@pytest.fixture(scope="session")
def run_case() -> Callable[..., dict[str, Array]]:
    """run_case(case, threads=1) returns the outputs of a case by name."""

    def run(case: OpCase, threads: int = 1) -> dict[str, Array]:
        feeds, expected = case.tensors()
        return dict(zip(expected, open_session(case.model(), threads).run(None, feeds), strict=True))

    return run
