"""One shared object serves the training build of ONNX Runtime here and the stock build in a venv of its own."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from sparsyedge.edge.native import library_path

FloatArray = npt.NDArray[np.float32]
RunOp = Callable[..., FloatArray]
OpModel = Callable[[str, list[Any]], bytes]


def some_inputs() -> dict[str, tuple[str, list[FloatArray]]]:
    """Case name -> op and its inputs."""
    rng = np.random.default_rng(23)
    w, gradient = rng.standard_normal((2, 32, 16, 3, 3)).astype(np.float32)
    w[rng.random(w.shape) < 0.9] = 0
    x = rng.standard_normal((16, 16, 32, 32)).astype(np.float32)
    decay = np.array([1e-3], np.float32)
    cases = {
        "decay": ("Decay", [w, decay]),
        "decay_grad": ("DecayGrad", [gradient, w, decay]),
        "decay_step": ("DecayStep", [w, gradient, decay, decay]),
        "prune_activation": ("PruneActivation", [x, w]),
        "to_lanes": ("ToLanes", [x]),
    }
    for beta in (1.0, 1.15, 1.25):
        exponent = np.array([beta], np.float32)
        cases[f"power_prop_{beta}"] = ("PowerProp", [w, exponent, decay])
        cases[f"power_prop_grad_{beta}"] = ("PowerPropGrad", [gradient, w, exponent, decay])
        cases[f"power_prop_step_{beta}"] = ("PowerPropStep", [w, gradient, exponent, decay, decay])
    return cases


@pytest.fixture(scope="module")
def stock_results(stock_python: Path, op_model: OpModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one <case>.npy for each case, computed by the stock runtime."""
    folder = tmp_path_factory.mktemp("stock")
    for case, (op, inputs) in some_inputs().items():
        (folder / f"{case}.onnx").write_bytes(op_model(op, [None] * len(inputs)))
        np.savez(folder / f"{case}.npz", *inputs)
    runner = Path(__file__).with_name("stock_runner.py")
    command = [str(stock_python), str(runner), str(library_path()), str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split()[-1] != onnxruntime.__version__, "both interpreters have the same runtime"
    return folder


@pytest.mark.parametrize("case", some_inputs())
def test_stock_runtime_gives_the_same_bits_as_the_training_runtime(
    run_op: RunOp, stock_results: Path, case: str
) -> None:
    op, inputs = some_inputs()[case]
    here, there = run_op(op, *inputs), np.load(stock_results / f"{case}.npy")
    assert there.shape == here.shape
    assert there.tobytes() == here.tobytes()
