"""`sparsyedge bench private-sum`."""

from __future__ import annotations

import json

import pytest

from sparsyedge.benchmarks import bench_command
from sparsyedge.edge import cli

COMMAND = ["private-sum", "--devices", "8", "--dropouts", "0", "0.3", "--values", "1000"]


def test_sums_are_exact_and_an_update_costs_its_support(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_command.main([*COMMAND, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["values"] == 1000
    calm, lossy = document["sums"]
    assert (calm["dropouts"], lossy["dropouts"]) == (0.0, 0.25)
    for each in (calm, lossy):
        assert each["exact"] is True
        assert each["update_bytes"] == 3 * 1001
    assert document["frame_bytes"]["bf16"] < document["frame_bytes"]["lossless"] < document["float32_bytes"]


def test_a_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_command.main(COMMAND) == 0
    out = capsys.readouterr().out
    assert "without privacy an update has" in out
    assert max(map(len, out.splitlines())) <= 80


def test_too_many_dropouts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "private-sum", "--dropouts", "0.9"]) != 0
    assert "below 0.4" in capsys.readouterr().err
