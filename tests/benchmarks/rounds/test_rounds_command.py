"""The benchmark of many devices in one round, with few."""

from __future__ import annotations

import json

import pytest

from sparsyedge.benchmarks.rounds import command


@pytest.mark.mosquitto
def test_a_round_of_three_devices_loses_nothing_and_counts_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--devices", "3", "--width", "4", "--json"]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert list(figures) == [
        "devices",
        "accepted",
        "lost",
        "duplicates_ignored",
        "updates_per_s",
        "p50_s",
        "p99_s",
        "coordinator_rss_mb",
        "broker_rss_mb",
    ]
    assert (figures["devices"], figures["accepted"], figures["lost"], figures["duplicates_ignored"]) == (3, 3, 0, 3)
    assert 0 < figures["p50_s"] <= figures["p99_s"]
    assert figures["coordinator_rss_mb"] > figures["broker_rss_mb"] > 0
    assert "dense models" in printed.err
