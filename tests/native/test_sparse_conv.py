"""Sparse convolution and its gradients: one table of layers against torch, threads, instruction sets and the clock."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.sparse_layers import (
    CASES,
    Array,
    Case,
    ModelSession,
    Results,
    assert_close,
    compute,
    expected,
    feeds,
    model,
    serialise,
    tensors,
    to_lanes,
)
from onnx import helper
from torch.nn import functional

from sparsyedge.edge.native import OP_DOMAIN, library_path

RunNode = Callable[..., list[Array]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_agree_with_torch_in_double_precision(model_session: ModelSession, case: Case) -> None:
    assert_close(compute(model_session, case), expected(case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_thread_count_changes_no_bit(model_session: ModelSession, case: Case) -> None:
    alone = compute(model_session, case)
    for threads in (2, 3):
        shared = compute(model_session, case, threads=threads)
        for name, array in alone._asdict().items():
            assert getattr(shared, name).tobytes() == array.tobytes(), f"{name} on {threads} threads"


def step_model(inputs: dict[str, Any]) -> bytes:
    """A graph of what a training step does with a layer, its plan given: forward and both gradients."""
    nodes = [
        helper.make_node("SparseConv", ["x", "values", "plan"], ["y"], domain=OP_DOMAIN),
        helper.make_node("SparseConvGradInput", ["dy", "values", "plan"], ["dx"], domain=OP_DOMAIN),
        helper.make_node("SparseConvGradWeight", ["saved_masked", "dy", "plan"], ["dtheta"], domain=OP_DOMAIN),
    ]
    return serialise(nodes, inputs, ("y", "dx", "dtheta"))


def best_ms(step: Callable[[], object], repeat: int = 7) -> float:
    step()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_speed_beside_dense_torch_is_printed(model_session: ModelSession, run_node: RunNode, case: Case) -> None:
    """What a layer costs a step, on one thread; `make bench-kernels` shows the figures, no figure is asserted."""
    inputs = feeds(case)
    plan, order = run_node("SparsePlan", [inputs["index"]], 2, **case.attributes)
    known = {name: inputs[name] for name in ("x", "dy", "saved_masked")}
    inputs = {**known, "values": inputs["theta"][order], "plan": plan}
    session = model_session(step_model(inputs), threads=1)
    data = tensors(case)
    x = torch.from_numpy(data.x).requires_grad_()
    weight = torch.from_numpy(data.weight).requires_grad_()
    dy = torch.from_numpy(data.dy)

    def dense() -> None:
        functional.conv2d(x, weight, stride=case.stride, padding=case.pad).backward(dy)  # type: ignore[no-untyped-call]

    torch.set_num_threads(1)
    ours_ms, torch_ms = best_ms(lambda: session.run(None, inputs)), best_ms(dense)
    print(f"{case!s:<58} ours {ours_ms:7.3f} ms  torch {torch_ms:7.3f} ms  {torch_ms / ours_ms:5.2f}x")
    assert ours_ms > 0


def run_forced(isa: str, folder: Path, cases: list[Case]) -> subprocess.CompletedProcess[str]:
    """Runs cases in a process of its own, since the instruction set is chosen once per process."""
    for number, case in enumerate(cases):
        (folder / f"{number}.onnx").write_bytes(model(case))
        np.savez(folder / f"{number}.npz", **feeds(case))
    runner = Path(__file__).with_name("isa_runner.py")
    return subprocess.run(
        [sys.executable, str(runner), str(library_path()), str(folder)],
        env={**os.environ, "SPARSYEDGE_FORCE_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.heavy
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set_agrees_with_torch(isa: str, tmp_path: Path) -> None:
    process = run_forced(isa, tmp_path, CASES)
    if f"SPARSYEDGE_FORCE_ISA is {isa}, this CPU has" in process.stderr:
        pytest.skip(f"this CPU has no {isa}")
    assert process.returncode == 0, process.stderr
    for number, case in enumerate(CASES):
        with np.load(tmp_path / f"{number}.out.npz") as arrays:
            assert_close(Results(**arrays), expected(case))


@pytest.mark.heavy
def test_an_instruction_set_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    process = run_forced("mmx", tmp_path, CASES[:1])
    assert process.returncode != 0
    assert "SPARSYEDGE_FORCE_ISA is mmx, this CPU has " in process.stderr
    assert "scalar" in process.stderr


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_layer_without_weights_gives_exact_zeros_and_passes_the_residual(
    model_session: ModelSession, kernel: int
) -> None:
    results = compute(model_session, case := Case(8, 8, kernel, 2, 8, 8, density=0.0))
    assert not results.y.any()
    assert not results.dx.any()
    assert results.dx_added.tobytes() == to_lanes(tensors(case).residual, case.halo).tobytes()
    assert results.dtheta_plain.shape == (0,)


def test_the_plan_is_a_permutation_of_the_values(run_node: RunNode) -> None:
    for case in CASES:
        index = tensors(case).kept
        _, order = run_node("SparsePlan", [index], outputs=2, **case.attributes)
        assert sorted(order.tolist()) == list(range(len(index)))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_plan_of_a_layer_that_is_not_pruned_is_small(run_node: RunNode, stride: int) -> None:
    case = Case(64, 64, 3, stride, 16, 16, density=1.0)
    plan, order = run_node("SparsePlan", [tensors(case).kept], outputs=2, **case.attributes)
    assert plan.size < order.size / 2


def test_a_nan_weight_reaches_the_outputs_that_use_it_and_no_other(run_node: RunNode) -> None:
    case = Case(4, 3, 3, 1, 8, 8, 0.5)
    data = tensors(case)
    plan, order = run_node("SparsePlan", [data.kept], outputs=2, **case.attributes)
    theta = data.weight.reshape(-1)[data.kept]
    theta[0] = np.nan
    (y,) = run_node("SparseConv", [to_lanes(data.x, case.halo), theta[order], plan])
    channel = data.kept[0] // (case.ic * case.kernel**2)
    assert np.isnan(y[:, channel]).any()
    assert not np.isnan(np.delete(y, channel, axis=1)).any()
