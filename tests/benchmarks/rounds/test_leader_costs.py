"""The benchmark of the leader alone."""

from __future__ import annotations

import json

import pytest

from sparsyedge.benchmarks.rounds.leader_costs import main


def test_every_update_of_every_round_is_accepted_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--devices", "5", "40", "--json"]) == 0
    few, many = json.loads(capsys.readouterr().out)
    assert (few["devices"], few["accepted"], many["devices"], many["accepted"]) == (5, 5, 40, 40)
    assert few["update_cpu_us"] > 0
