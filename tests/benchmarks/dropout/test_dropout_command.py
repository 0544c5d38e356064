"""The dropout benchmark: who is lost, and what the pairs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsyedge.benchmarks.dropout import command as dropout
from sparsyedge.benchmarks.dropout.command import lost

DEVICES = tuple(f"device-{index}" for index in range(10))


def test_about_the_asked_share_is_lost_and_never_everybody() -> None:
    drop = lost(3, DEVICES, 0.3)
    gone = [[device for device in DEVICES if drop(number, device)] for number in range(1, 201)]
    assert sum(len(each) for each in gone) / (200 * len(DEVICES)) == pytest.approx(0.3, abs=0.04)
    almost_all = lost(3, DEVICES[:2], 0.99)
    assert all(sum(almost_all(number, device) for device in DEVICES[:2]) <= 1 for number in range(1, 50))


@pytest.mark.heavy
def test_a_pair_of_small_runs_ends_in_a_document_and_goes_on_from_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--rounds", "2", "--devices", "3", "--width", "4", "--seeds", "1", "--workers", "1", "--json"]
    assert dropout.main([*command, "--out", str(tmp_path)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["pairs"][0]["updates_lost"] >= 1
    assert first["difference_points"] == first["pairs"][0]["dropout"] - first["pairs"][0]["complete"]

    def unwanted(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a finished run is not run again")

    monkeypatch.setattr(dropout, "simulate", unwanted)
    assert dropout.main([*command, "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == first
