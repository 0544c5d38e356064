"""One shared object serves the training build of ONNX Runtime here and the stock build in a venv of its own."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
from fixtures.op_cases.case import Array
from fixtures.op_cases.elsewhere import results, run_elsewhere
from fixtures.op_cases.table import CASES

RunCase = Callable[..., dict[str, Array]]

pytestmark = [pytest.mark.timeout(600), pytest.mark.heavy]


def test_stock_runtime_gives_the_same_bits_as_the_training_runtime(
    run_case: RunCase, stock_python: Path, tmp_path: Path
) -> None:
    process = run_elsewhere(CASES, tmp_path, python=str(stock_python))
    assert process.returncode == 0, process.stderr
    assert process.stdout.split()[-1] != onnxruntime.__version__, "both interpreters have the same runtime"
    for case, there in results(CASES, tmp_path):
        for name, here in run_case(case).items():
            assert there[name].shape == here.shape, (case.name, name)
            assert there[name].tobytes() == here.tobytes(), (case.name, name)
