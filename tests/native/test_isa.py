"""Ops without fused multiply-add and without sums across lanes give the same bits on every instruction set."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

from sparsyedge.edge.native import OP_DOMAIN, library_path

pytestmark = pytest.mark.heavy

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]
NodeModel = Callable[..., bytes]
ModelSession = Callable[[bytes], Any]
Case = tuple[bytes, dict[str, Any]]  # a serialised graph and its inputs

RUNNER = Path(__file__).with_name("isa_runner.py")
CHANNELS, OUT_CHANNELS = 6, 100


def run_folder(folder: Path, isa: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUNNER), str(library_path()), str(folder)]
    environment = {**os.environ, "SPARSYEDGE_FORCE_ISA": isa}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def available() -> list[str]:
    """What the operating system says this CPU has."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    sets = {"avx2": " avx2 ", "avx512": " avx512vl ", "neon": " asimd "}
    return ["scalar", *(name for name, flag in sets.items() if flag in flags)]


def node_case(node_model: NodeModel, op: str, inputs: list[Array], outputs: int, **attributes: int) -> Case:
    model = node_model(op, [x.dtype for x in inputs], [True] * outputs, attributes)
    return model, {f"input{i}": x for i, x in enumerate(inputs)}


def save_case(x: Array, batch: Array, nonzeros: int) -> Case:
    """A plan and the op that reads it: plans do not travel from one instruction set to another."""
    layer: dict[str, Any] = {"oc": OUT_CHANNELS, "ic": CHANNELS, "kernel_h": 1, "kernel_w": 1, "stride": 1, "pad": 0}
    layer |= {"in_h": x.shape[2], "in_w": x.shape[3], "pad_in": 0, "pad_out": 0, "grad_input": 0}
    graph = helper.make_graph(
        [
            helper.make_node("SparsePlan", ["index"], ["plan", "order"], domain=OP_DOMAIN, **layer),
            helper.make_node("SaveActivation", ["x", "plan", "batch"], ["saved", "tau"], domain=OP_DOMAIN),
        ],
        "save",
        [
            helper.make_tensor_value_info("index", TensorProto.INT32, [nonzeros]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
            helper.make_tensor_value_info("batch", TensorProto.INT64, [1]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("saved", "tau")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OP_DOMAIN, 1)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return model, {"index": np.arange(nonzeros, dtype=np.int32), "x": x, "batch": batch}


@pytest.fixture(scope="module")
def cases(run_node: RunNode, node_model: NodeModel) -> dict[str, Case]:
    """Rows that do and do not fill groups of four positions, batches that do and do not fill the lanes."""
    rng, found = np.random.default_rng(9), {}
    for height, width, images in [(5, 7, 5), (4, 4, 16), (1, 9, 16), (32, 32, 16)]:
        name, batch = f"{height}x{width}x{images}", np.array([images], np.int64)
        x, residual, dy = rng.standard_normal((3, 1, CHANNELS, height, width, 16)).astype(np.float32)
        for tensor in (x, residual, dy):
            tensor[..., images:] = 0
        gamma, beta, mean, var = np.abs(rng.standard_normal((4, CHANNELS))).astype(np.float32)
        norm = [x, gamma, beta, mean, var, batch, residual]
        found[f"norm_{name}"] = node_case(node_model, "BatchNormAct", norm, 6, relu=1, pad_out=1)
        _, saved_mean, inv_std, _, _, positive = run_node("BatchNormAct", norm, 6, relu=1, pad_out=1)
        grad = [dy, x, gamma, saved_mean, inv_std, batch, positive]
        found[f"norm_grad_{name}"] = node_case(node_model, "BatchNormActGrad", grad, 4, pad_out=2)
        for nonzeros in (1, 90, 300, 599):
            found[f"save_{nonzeros}_{name}"] = save_case(np.maximum(x, 0), batch, nonzeros)
    return found


@pytest.mark.parametrize("isa", available())
def test_every_instruction_set_gives_the_same_bits(
    cases: dict[str, Case], model_session: ModelSession, tmp_path: Path, isa: str
) -> None:
    for name, (model, feeds) in cases.items():
        (tmp_path / f"{name}.onnx").write_bytes(model)
        np.savez(tmp_path / f"{name}.npz", **feeds)
    finished = run_folder(tmp_path, isa)
    assert finished.returncode == 0, finished.stderr
    for name, (model, feeds) in cases.items():
        session = model_session(model)
        with np.load(tmp_path / f"{name}.out.npz") as there:
            for port, here in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                assert there[port.name].tobytes() == here.tobytes(), (name, port.name)


def test_an_instruction_set_that_is_not_there_is_refused_by_name(node_model: NodeModel, tmp_path: Path) -> None:
    vectors = [np.ones(1, np.float32)] * 4
    inputs = [np.zeros((1, 1, 1, 1, 16), np.float32), *vectors, np.array([1])]
    model, feeds = node_case(node_model, "BatchNormAct", inputs, 5, relu=0)
    (tmp_path / "case.onnx").write_bytes(model)
    np.savez(tmp_path / "case.npz", **feeds)
    finished = run_folder(tmp_path, "sse9")
    assert finished.returncode != 0
    assert "SPARSYEDGE_FORCE_ISA is sse9, this CPU has" in finished.stderr
    assert "scalar" in finished.stderr
