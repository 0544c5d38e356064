"""`make bench-kernels` times the same table that the tests check."""

import pytest
from fixtures.op_cases import speed


def test_cases_are_picked_by_a_part_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["SparseConv 5-7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("SparseConv 5-7") for line in lines] == [True, False] * 2
    assert all("dense torch" in line and line.endswith("x") for line in lines[1::2])
    assert max(map(len, lines)) <= 80


def test_a_name_that_no_case_has_is_refused_with_one_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.main(["Flash"])
    assert "no case has 'Flash' in its name; the first is 'SparseConv" in capsys.readouterr().err
