"""The benchmark of many devices in one round, with few."""

from __future__ import annotations

import json
import resource
import shutil
from typing import Any

import pytest

from sparsyedge.benchmarks.rounds import command
from sparsyedge.benchmarks.rounds.figures import split_of
from sparsyedge.benchmarks.simulate import local_mosquitto
from sparsyedge.edge.errors import ConfigError, LinkError, RunError

DEVICES = 20


def _document(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert command.main(["--width", "8", "--variants", "3", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.mosquitto
def test_a_round_of_twenty_devices_loses_nothing_and_counts_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(capsys, "--devices", str(DEVICES), "--peer", "mosquitto", "--subscriber", "durable")
    (point,) = document["points"]
    figures = point["figures"]
    assert (figures["devices"], figures["accepted"], figures["lost"], figures["counted_twice"]) == (20, 20, 0, 0)
    assert figures["answered_again"] == DEVICES
    assert 0 < figures["p50_s"] <= figures["p99_s"] < 60
    assert figures["updates_per_s"] > 0
    assert figures["close_s"] > 0
    assert figures["coordinator_peak_mb"] > figures["coordinator_idle_mb"] > figures["broker_mb"] > 0
    assert figures["bytes_up"] > figures["update_bytes"] > 1000
    assert figures["messages_up"] >= figures["chunks_per_update"] + 3  # offer, offer again, report
    assert figures["lost_connections"] == 0
    assert point["peer"]["updates_per_s"] > 0
    assert point["peer_ratio"] == pytest.approx(figures["updates_per_s"] / point["peer"]["updates_per_s"], abs=1e-3)
    assert document["fit"] is None


@pytest.mark.mosquitto
def test_updates_of_the_second_round_are_differences_in_the_runs_codec(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--devices", str(DEVICES), "--codec", "bf16", "--rounds", "2")
    (point,) = _document(capsys, *options, "--peer", "mosquitto", "--subscriber", "link")["points"]
    figures = point["figures"]
    assert (figures["accepted"], figures["lost"], figures["answered_again"]) == (DEVICES, 0, DEVICES)
    # In round 1, without loss, an update takes 35 kB. Its values alone would take 18 kB as halves.
    assert 1000 < figures["update_bytes"] < 15_000
    assert figures["model_bytes"] < 100_000  # sparse, unlike the first round's
    assert "link" in point["peer"]["subscriber"]


@pytest.mark.mosquitto
def test_several_sizes_give_time_and_memory_per_device(capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(capsys, "--devices", "3,9")
    assert [point["figures"]["devices"] for point in document["points"]] == [3, 9]
    assert list(document["fit"]["ms_per_update"]) == ["3", "9"]
    assert document["fit"]["slowest_over_fastest"] >= 1
    for point in document["points"]:
        figures = point["figures"]
        parts_ms = figures["first_ms"] + figures["later_ms_per_update"] * (figures["devices"] - 1)
        assert parts_ms == pytest.approx(1000 * figures["seconds"], abs=2)


def test_the_time_of_a_round_is_split_at_its_first_update() -> None:
    assert split_of([0.1 + 0.004 * number for number in reversed(range(101))]) == pytest.approx((100.0, 4.0))
    assert split_of([0.25]) == (250.0, 0.0)
    assert split_of([]) == (0.0, 0.0)


@pytest.mark.mosquitto
def test_a_run_that_takes_too_long_ends_with_a_sentence() -> None:
    with pytest.raises(RunError, match=r"after 0\.001 s; raise --limit"):
        command.main(["--devices", "2", "--width", "4", "--limit", "0.001"])


@pytest.mark.mosquitto
def test_a_key_that_run_toml_does_not_have_is_the_coordinators_sentence() -> None:
    with pytest.raises(RunError, match="nonsense"):
        command.main(["--devices", "2", "--width", "4", "--set", "nonsense = 1"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--devices", "0"], "'0' is not a number of devices, from 1 to 100000"),
        (["--devices", "10,many"], "'many' is not a number of devices"),
        (["--codec", "zip"], "argument --codec: invalid choice: 'zip'"),
        (["--rounds", "0"], "0 is not allowed, at least 1 is needed"),
        (["--variants", "0"], "0 is not allowed, at least 1 is needed"),
        (["--peer", "nats"], "argument --peer: invalid choice: 'nats'"),
        (["--limit", "0"], "a number above 0 is needed"),
    ],
)
def test_bad_options_are_refused_with_what_is_allowed(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(options)
    assert sentence in capsys.readouterr().err


def test_a_subscriber_without_a_peer_is_refused() -> None:
    with pytest.raises(ConfigError, match="add --peer mosquitto"):
        command.main(["--subscriber", "lean"])


def test_without_mosquitto_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_mosquitto, "SEARCH_PATH", "/nonexistent")
    assert shutil.which("mosquitto", path="/nonexistent") is None
    with pytest.raises(LinkError, match="no Mosquitto on the PATH; install it"):
        command.main(["--peer", "mosquitto"])


def test_more_devices_than_open_files_are_refused_with_the_next_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 1024))
    monkeypatch.setattr(command, "find_mosquitto", lambda: "mosquitto")
    with pytest.raises(ConfigError, match="2000 devices need 2512 open files in Mosquitto, and this shell allows 1024"):
        command.main(["--devices", "2000"])
