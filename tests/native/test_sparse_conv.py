"""Sparse convolution and its gradients: one table of layers against torch, threads, instruction sets and bad inputs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional

from sparsyedge.edge.native import OP_DOMAIN, library_path

Array = npt.NDArray[Any]
RunNode = Callable[..., list[Array]]
ModelSession = Callable[..., Any]

TOLERANCE = 2e-6  # of the norm; a sum of a few thousand float32 products is off by less

SAVED_MAGIC, SAVED_PLAIN, SAVED_MASKED = 0x56415345, 0, 1


@dataclass(frozen=True)
class Case:
    """A layer on planes of height x width, with a share of its weights not zero."""

    oc: int
    ic: int
    kernel: int
    stride: int
    height: int
    width: int
    density: float
    batch: int = 16
    more_halo: int = 0

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def halo(self) -> int:
        return self.pad + self.more_halo

    @property
    def out_size(self) -> tuple[int, int]:
        def out(size: int) -> int:
            return (size + 2 * self.pad - self.kernel) // self.stride + 1

        return out(self.height), out(self.width)

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes of SparsePlan."""
        return {
            "oc": self.oc,
            "ic": self.ic,
            "kernel_h": self.kernel,
            "kernel_w": self.kernel,
            "stride": self.stride,
            "pad": self.pad,
            "in_h": self.height,
            "in_w": self.width,
            "pad_in": self.halo,
            "pad_out": self.halo,
            "grad_input": 1,
        }

    def __str__(self) -> str:
        return (
            f"{self.ic}-{self.oc} {self.kernel}x{self.kernel}/{self.stride} {self.height}x{self.width} "
            f"density {self.density} batch {self.batch} halo +{self.more_halo}"
        )


CASES = [
    # the layers of a ResNet-18 on 32x32 images, narrowed where that changes no tile
    Case(64, 3, 3, 1, 32, 32, 0.9),
    Case(32, 64, 3, 1, 32, 32, 0.46),
    Case(48, 32, 3, 2, 32, 32, 0.41),
    Case(48, 48, 3, 1, 16, 16, 0.23),
    Case(48, 32, 1, 2, 32, 32, 0.8),
    Case(64, 64, 3, 1, 8, 8, 0.065),
    Case(64, 64, 3, 2, 8, 8, 0.06),
    Case(64, 64, 3, 1, 4, 4, 0.02),
    Case(96, 64, 1, 2, 8, 8, 0.57),
    Case(10, 64, 1, 1, 1, 1, 0.6),
    # very sparse, empty and full
    Case(64, 64, 3, 1, 32, 32, 0.01),
    Case(16, 16, 3, 1, 8, 8, 0.0),
    Case(16, 16, 3, 2, 9, 9, 0.0),
    Case(16, 16, 3, 1, 8, 8, 1.0),
    Case(8, 8, 1, 1, 5, 5, 1.0),
    # a waveform: planes of height 1, where most taps of a kernel only meet the halo
    Case(16, 1, 7, 2, 1, 400, 0.8, batch=5),
    Case(16, 16, 3, 1, 1, 50, 0.3, batch=5),
    Case(24, 16, 3, 2, 1, 25, 0.4, batch=1),
    Case(24, 16, 1, 2, 1, 25, 0.7, batch=1),
    # sizes that no tile divides
    Case(7, 5, 3, 1, 7, 9, 0.5, batch=17),
    Case(7, 5, 3, 2, 7, 9, 0.5, batch=17),
    Case(5, 9, 3, 2, 11, 6, 0.4),
    Case(6, 4, 7, 2, 15, 19, 0.3, batch=33),
    Case(6, 4, 7, 1, 9, 13, 0.3),
    Case(6, 4, 5, 1, 3, 3, 0.7),
    Case(9, 6, 3, 1, 2, 31, 0.4),
    Case(9, 6, 3, 1, 31, 2, 0.4),
    Case(9, 6, 3, 2, 1, 1, 0.9),
    # batches and halos
    Case(20, 33, 3, 1, 12, 12, 0.4, batch=1),
    Case(20, 33, 3, 1, 12, 12, 0.4, batch=5),
    Case(20, 33, 3, 2, 12, 12, 0.4, batch=17),
    Case(20, 33, 3, 1, 12, 12, 0.4, batch=33),
    Case(12, 12, 3, 1, 10, 10, 0.5, more_halo=2),
    Case(12, 12, 3, 2, 10, 10, 0.5, more_halo=1),
    Case(12, 12, 1, 1, 10, 10, 0.5, more_halo=1),
]


class Tensors(NamedTuple):
    """One case's data, dense: the weights as [OC,IC,KH,KW], images as [N,C,H,W]."""

    weight: Array
    kept: Array  # ascending flat positions of the non-zeros
    x: Array
    x_saved: Array
    dy: Array
    residual: Array


def tensors(case: Case) -> Tensors:
    rng = np.random.default_rng(list(str(case).encode()))
    weight = rng.standard_normal((case.oc, case.ic, case.kernel, case.kernel)).astype(np.float32)
    kept = rng.permutation(weight.size)[: round(case.density * weight.size)]
    index = np.sort(kept).astype(np.int32)
    mask = np.zeros(weight.size, bool)
    mask[index] = True
    weight *= mask.reshape(weight.shape)
    x = rng.standard_normal((case.batch, case.ic, case.height, case.width)).astype(np.float32)
    dy = rng.standard_normal((case.batch, case.oc, *case.out_size)).astype(np.float32)
    residual = rng.standard_normal(x.shape).astype(np.float32)
    return Tensors(weight, index, x, np.where(np.abs(x) > 0.7, x, np.float32(0)), dy, residual)


def to_lanes(x: Array, halo: int) -> Array:
    padded = np.pad(x, ((0, -len(x) % 16), (0, 0), (halo, halo), (halo, halo)))
    return np.ascontiguousarray(np.moveaxis(padded.reshape(-1, 16, *padded.shape[1:]), 1, -1))


def saved(x: Array, halo: int, encoding: int) -> Array:
    """The bytes of kernels/saved.h."""
    lanes = to_lanes(x, halo)
    true = to_lanes(x, 0)
    groups, channels, height, width, _ = true.shape

    def aligned(array: Array) -> bytes:
        data = array.tobytes()
        return data + bytes(-len(data) % 64)

    body: tuple[bytes, ...]
    if encoding == SAVED_PLAIN:
        body, count = (lanes.tobytes(),), lanes.size
    else:
        kept = true != 0
        row_start = np.concatenate([[0], np.cumsum(kept.sum((3, 4)))]).astype(np.uint32)
        mask = (kept * (1 << np.arange(16))).sum(-1).astype(np.uint16)
        values = true[kept]
        body, count = (aligned(row_start), aligned(mask), values.tobytes()), values.size
    header = np.zeros(16, np.uint32)
    header[:8] = [SAVED_MAGIC, encoding, groups, channels, height, width, halo, count]
    return np.frombuffer(header.tobytes() + b"".join(body), np.uint8)


class Results(NamedTuple):
    """Everything that our ops say about a case; gradients of weights in the order of the index."""

    y: Array
    dx: Array
    dx_added: Array
    dtheta_plain: Array
    dtheta_masked: Array


def feeds(case: Case) -> dict[str, Any]:
    data = tensors(case)
    return {
        "index": data.kept,
        "theta": data.weight.reshape(-1)[data.kept],
        "x": to_lanes(data.x, case.halo),
        "dy": to_lanes(data.dy, case.halo),
        "residual": to_lanes(data.residual, case.halo),
        "saved_plain": saved(data.x_saved, case.halo, SAVED_PLAIN),
        "saved_masked": saved(data.x_saved, case.halo, SAVED_MASKED),
    }


def model(case: Case) -> bytes:
    """A graph from `feeds` to `Results`: the plan, the values in its order, the three ops, and back."""

    def ours(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
        return helper.make_node(op, inputs, outputs, domain=OP_DOMAIN, **attributes)

    nodes = [
        ours("SparsePlan", ["index"], ["plan", "order"], **case.attributes),
        helper.make_node("Gather", ["theta", "order"], ["values"]),
        ours("SparseConv", ["x", "values", "plan"], ["y"]),
        ours("SparseConvGradInput", ["dy", "values", "plan"], ["dx"]),
        ours("SparseConvGradInput", ["dy", "values", "plan", "residual"], ["dx_added"]),
    ]
    for encoding in ("plain", "masked"):
        gradient, dtheta = f"gradient_{encoding}", f"dtheta_{encoding}"
        nodes.append(ours("SparseConvGradWeight", [f"saved_{encoding}", "dy", "plan"], [gradient]))
        nodes.append(helper.make_node("ScatterElements", ["theta", "order", gradient], [dtheta]))
    return serialise(nodes, feeds(case), Results._fields)


def serialise(nodes: list[Any], inputs: dict[str, Any], outputs: tuple[str, ...]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "sparse_conv",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None) for n, a in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OP_DOMAIN, 1)]
    serialised: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return serialised


def compute(model_session: ModelSession, case: Case, threads: int = 1) -> Results:
    return Results(*model_session(model(case), threads).run(None, feeds(case)))


def expected(case: Case) -> Results:
    """The same from torch in double precision."""
    data = tensors(case)
    weight = torch.from_numpy(data.weight).double().requires_grad_()
    x, x_saved = (torch.from_numpy(a).double().requires_grad_() for a in (data.x, data.x_saved))
    dy = torch.from_numpy(data.dy).double()
    y = functional.conv2d(x, weight, stride=case.stride, padding=case.pad)
    (dx,) = torch.autograd.grad(y, x, dy)
    pruned = functional.conv2d(x_saved, weight, stride=case.stride, padding=case.pad)
    (dweight,) = torch.autograd.grad(pruned, weight, dy)
    dtheta = dweight.numpy().reshape(-1)[data.kept]
    return Results(
        to_lanes(y.detach().numpy(), case.halo),
        to_lanes(dx.numpy(), case.halo),
        to_lanes(dx.numpy() + data.residual, case.halo),
        dtheta,
        dtheta,
    )


def relative_error(found: Array, wanted: Array) -> float:
    difference = float(np.linalg.norm((found - wanted).astype(np.float64)))
    return difference / max(float(np.linalg.norm(wanted.astype(np.float64))), 1e-30)


def assert_close(found: Results, wanted: Results) -> None:
    for name, array in wanted._asdict().items():
        result = getattr(found, name)
        assert result.shape == array.shape, name
        assert result.dtype == np.float32, name
        assert np.array_equal(result[array == 0], array[array == 0]), f"{name}: halo, unused lanes, dead taps"
        assert relative_error(result, array) <= TOLERANCE, name


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


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set_agrees_with_torch(isa: str, tmp_path: Path) -> None:
    process = run_forced(isa, tmp_path, CASES)
    if f"SPARSYEDGE_FORCE_ISA is {isa}, this CPU has" in process.stderr:
        pytest.skip(f"this CPU has no {isa}")
    assert process.returncode == 0, process.stderr
    for number, case in enumerate(CASES):
        with np.load(tmp_path / f"{number}.out.npz") as arrays:
            assert_close(Results(**arrays), expected(case))


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


# ----------------------------------------------------------------------------------------------------------------------
# Bad inputs: a sentence, never a crash

GOOD = Case(4, 3, 3, 1, 8, 8, 0.5)


def good_inputs(run_node: RunNode) -> dict[str, Array]:
    data = tensors(GOOD)
    plan, order = run_node("SparsePlan", [data.kept], outputs=2, **GOOD.attributes)
    return {
        "plan": plan,
        "theta": data.weight.reshape(-1)[data.kept][order],
        "x": to_lanes(data.x, GOOD.halo),
        "dy": to_lanes(data.dy, GOOD.halo),
        "saved": saved(data.x_saved, GOOD.halo, SAVED_MASKED),
        "residual": to_lanes(data.residual, GOOD.halo),
    }


INPUTS_OF = {
    "SparseConv": ["x", "theta", "plan"],
    "SparseConvGradInput": ["dy", "theta", "plan", "residual"],
    "SparseConvGradWeight": ["saved", "dy", "plan"],
}


def no_magic(plan: Array) -> Array:
    return np.where(np.arange(len(plan)) == 0, 1, plan).astype(np.int32)


@pytest.mark.parametrize(
    ("op", "bad", "change", "complaint"),
    [
        ("SparseConv", "plan", no_magic, r"plan of shape \[\d+\] is not the output of SparsePlan"),
        ("SparseConv", "plan", lambda p: p[:3], r"plan of shape \[3\] is not the output of SparsePlan"),
        ("SparseConv", "plan", lambda p: p[:0], r"plan of shape \[0\] is not the output of SparsePlan"),
        ("SparseConv", "plan", lambda p: p[:-1], r"plan has \d+ values, must have \d+"),
        ("SparseConv", "theta", lambda t: t[:-1], r"theta has shape \[53\], the plan is for \[54\]"),
        ("SparseConv", "theta", lambda t: t[None], r"theta has shape \[1,54\], the plan is for \[54\]"),
        ("SparseConv", "x", lambda x: x[:, :2], r"x has shape \[1,2,10,10,16\], the plan is for \[1,3,10,10,16\]"),
        ("SparseConv", "x", lambda x: x[:, :, 1:], r"x has shape \[1,3,9,10,16\], the plan is for"),
        ("SparseConv", "x", lambda x: x[0], r"x has shape \[3,10,10,16\], the plan is for"),
        ("SparseConv", "x", lambda x: x[:0], r"x has shape \[0,3,10,10,16\], the plan is for \[1,3,10,10,16\]"),
        ("SparseConvGradInput", "plan", no_magic, r"plan of shape \[\d+\] is not the output of SparsePlan"),
        ("SparseConvGradInput", "dy", lambda d: d[..., :8], r"dy has shape \[1,4,10,10,8\], the plan is for"),
        ("SparseConvGradInput", "theta", lambda t: t[:0], r"theta has shape \[0\], the plan is for \[54\]"),
        ("SparseConvGradInput", "residual", lambda r: r[:, :1], r"accumulate has shape \[1,1,10,10,16\], the plan"),
        ("SparseConvGradInput", "residual", lambda r: r[:, :, 1:-1, 1:-1], r"accumulate has shape \[1,3,8,8,16\]"),
        ("SparseConvGradWeight", "plan", no_magic, r"plan of shape \[\d+\] is not the output of SparsePlan"),
        ("SparseConvGradWeight", "saved", lambda s: s[:40], r"saved of shape \[40\] is not the output of Save"),
        ("SparseConvGradWeight", "saved", lambda s: s[:-1], r"saved has \d+ bytes, must have \d+"),
        ("SparseConvGradWeight", "dy", lambda d: np.repeat(d, 2, 0), r"saved holds 1 groups of 16 images, dy has 2"),
    ],
)
def test_inputs_that_do_not_fit_the_plan_are_refused(
    run_node: RunNode, op: str, bad: str, change: Callable[[Array], Array], complaint: str
) -> None:
    inputs = good_inputs(run_node)
    inputs[bad] = np.ascontiguousarray(change(inputs[bad]))
    with pytest.raises(Exception, match=f"{op}: {complaint}"):
        run_node(op, [inputs[name] for name in INPUTS_OF[op]])


def test_an_activation_of_another_layer_is_refused(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    other = saved(np.ones((16, 2, 8, 8), np.float32), GOOD.halo, SAVED_PLAIN)
    with pytest.raises(Exception, match=r"saved holds channels, height, width, halo \[2,8,8,1\], .* \[3,8,8,1\]"):
        run_node("SparseConvGradWeight", [other, inputs["dy"], inputs["plan"]])


def test_a_plan_without_the_gradient_of_the_input_refuses_to_give_one(run_node: RunNode) -> None:
    inputs = good_inputs(run_node)
    (plan, _) = run_node("SparsePlan", [tensors(GOOD).kept], outputs=2, **{**GOOD.attributes, "grad_input": 0})
    with pytest.raises(Exception, match=r"SparseConvGradInput: the plan was made with grad_input = 0"):
        run_node("SparseConvGradInput", [inputs["dy"], inputs["theta"], plan])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stride": 3}, "attribute stride is 3, must be from 1 to 2"),
        ({"kernel_h": 0}, "attribute kernel_h is 0, must be from 1 to"),
        ({"pad_in": 0}, "pad_in is 0, must be at least 1 for the rows of the convolution"),
        ({"pad_out": 0}, "pad_out is 0, must be at least 1 for the rows of the input's gradient"),
        ({"kernel_h": 11, "in_h": 4}, "a kernel of 11x3 does not fit into a plane of 4x8 with pad 1"),
        ({"ic": 60000, "in_h": 1000, "in_w": 1000}, "has a tensor of .* values, must be below 2"),
    ],
)
def test_a_layer_that_the_kernels_cannot_serve_is_refused(
    run_node: RunNode, changes: dict[str, int], complaint: str
) -> None:
    with pytest.raises(Exception, match=f"SparsePlan: .*{complaint}"):
        run_node("SparsePlan", [np.zeros(1, np.int32)], outputs=2, **{**GOOD.attributes, **changes})


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ([3, 3], r"index\[1\] is 3 after 3, must ascend and stay below 108"),
        ([5, 4], r"index\[1\] is 4 after 5"),
        ([-1], r"index\[0\] is -1 after -1"),
        ([0, 108], r"index\[1\] is 108 after 0, must ascend and stay below 108"),
        ([[1]], r"index has shape \[1,1\], must be \[nnz\]"),
    ],
)
def test_positions_that_are_none_are_refused(run_node: RunNode, index: list[Any], complaint: str) -> None:
    with pytest.raises(Exception, match=f"SparsePlan: {complaint}"):
        run_node("SparsePlan", [np.array(index, np.int32)], outputs=2, **GOOD.attributes)
