"""Every op over one table of cases: its results, and that threads do not change them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.op_cases.case import Array, OpCase
from fixtures.op_cases.table import CASES

RunCase = Callable[..., dict[str, Array]]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> OpCase:
    """With this scope the tests of one case follow each other, and its reference is computed once."""
    one: OpCase = request.param
    return one


def test_results_agree_with_the_reference(run_case: RunCase, case: OpCase) -> None:
    case.assert_agrees(run_case(case))


def test_thread_count_changes_no_bit(run_case: RunCase, case: OpCase) -> None:
    alone = run_case(case)
    for threads in (2, 3):
        for name, array in run_case(case, threads=threads).items():
            assert array.tobytes() == alone[name].tobytes(), f"{name} on {threads} threads"


def test_no_two_cases_have_one_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_op_of_the_library_is_in_the_table() -> None:
    source = Path(__file__).parents[2] / "edge/native/register.cc"
    registered = set(re.findall(r"^  X\((\w+)\)", source.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(registered) > 20
    assert registered <= {node.op for case in CASES for node in case.nodes}
