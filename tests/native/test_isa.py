"""Every instruction set over the table of cases."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.op_cases.case import Array
from fixtures.op_cases.elsewhere import available_isas, results, run_elsewhere
from fixtures.op_cases.table import CASES

RunCase = Callable[..., dict[str, Array]]

pytestmark = [pytest.mark.timeout(600), pytest.mark.heavy]

WITH_KERNELS = [case for case in CASES if case.across_isas != "no kernels"]


@pytest.mark.parametrize("isa", available_isas())
def test_every_instruction_set_agrees_with_the_reference(run_case: RunCase, tmp_path: Path, isa: str) -> None:
    """Ops that neither fuse multiply-adds nor add across lanes give the same bits on all of them."""
    process = run_elsewhere(WITH_KERNELS, tmp_path, isa)
    assert process.returncode == 0, process.stderr
    for case, found in results(WITH_KERNELS, tmp_path):
        case.assert_agrees(found)
        if case.across_isas == "same bits":
            for name, here in run_case(case).items():
                assert found[name].tobytes() == here.tobytes(), (case.name, name)


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    process = run_elsewhere(WITH_KERNELS[:1], tmp_path, "sse9")
    assert process.returncode != 0
    assert "SPARSYEDGE_FORCE_ISA is sse9, this CPU has" in process.stderr
    assert "scalar" in process.stderr
