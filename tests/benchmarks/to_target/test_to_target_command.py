"""`sparsyedge bench to-target`: when a target is held, what it cost, and small runs for real."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from sparsyedge.benchmarks.to_target import runs
from sparsyedge.benchmarks.to_target.plot import draw
from sparsyedge.benchmarks.to_target.result import Point, Result, Settings, held_round
from sparsyedge.benchmarks.to_target.tables import print_table, summary_of
from sparsyedge.edge import cli

SETTINGS = Settings(
    dataset="digits",
    target=0.9,
    devices=4,
    cohort=4,
    rounds=3,
    epochs=1,
    model="resnet18-calm",
    width=4,
    alpha=1.0,
    learning_rate=0.2,
    last_learning_rate=0.02,
    codec="bf16",
    meter="cpu-model",
    threads=1,
)


def result_of(method: str, seed: int, accuracies: list[float], *, step: float = 1.0, kind: str = "modelled") -> Result:
    """A run whose every round moves `step` MB each way and takes `step` seconds and joules."""
    points = tuple(
        Point(
            round=number,
            accuracy=accuracy,
            bytes_down=round(1e6 * step * number),
            bytes_up=round(1e6 * step * number),
            seconds=step * number,
            device_s=4 * step * number,
            joules=None if kind == "none" else step * number,
        )
        for number, accuracy in enumerate(accuracies, start=1)
    )
    return Result(
        method=method,
        seed=seed,
        settings=SETTINGS,
        held_round=held_round([(point.round, point.accuracy) for point in points], SETTINGS.target),
        points=points,
        energy_source="cpu-model" if kind != "none" else "none",
        energy_kind=kind,
        energy_hz=0.0,
        model_id="",
        machine={},
    )


def shown(results: list[Result]) -> str:
    console = Console(width=80, file=io.StringIO())
    print_table(console, results)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.5, 0.91, 0.92, 0.4], 2),
        ([0.95, 0.89, 0.91, 0.9], 3),
        ([0.95, 0.89, 0.95], None),
        ([0.1, 0.2, 0.95], None),
        ([0.95, None, 0.95], 1),
        ([], None),
    ],
)
def test_a_target_is_held_once_two_evaluations_in_turn_reach_it(
    accuracies: list[float | None], expected: int | None
) -> None:
    assert held_round(list(enumerate(accuracies, start=1)), 0.9) == expected


def test_the_cost_is_that_of_the_first_of_the_two_rounds() -> None:
    cost = result_of("dense", 1, [0.5, 0.9, 0.9], step=2.0).cost
    assert cost is not None
    assert (cost.round, cost.bytes_down, cost.joules) == (2, 4_000_000, 4.0)


def test_methods_are_compared_in_pairs_of_seeds_that_both_held() -> None:
    results = [
        result_of("dense", 1, [0.9, 0.9], step=8.0),
        result_of("dense", 2, [0.9, 0.9], step=8.0),
        result_of("sparsyfed", 1, [0.1, 0.9, 0.9]),
        result_of("sparsyfed", 2, [0.1, 0.1, 0.9]),
    ]
    sparse = summary_of(results)["methods"]["sparsyfed"]
    assert (sparse["seeds"], sparse["held"]) == ([1, 2], [1])
    assert sparse["times_less"]["mb"]["mean"] == pytest.approx(4.0)
    text = shown(results)
    assert "1 of 2" in text
    assert "sparsyfed never held it within 3 rounds (seed 2): 90.0% at best" in text
    assert "modelled (cpu-model)" in text


def test_intervals_stand_beside_the_means_of_several_seeds() -> None:
    results = [result_of("dense", seed, [0.9, 0.9], step=step) for seed, step in ((1, 1.0), (2, 2.0), (3, 3.0))]
    joules = summary_of(results)["methods"]["dense"]["joules"]
    assert joules["mean"] == pytest.approx(2.0)
    assert joules["high"] - joules["mean"] == pytest.approx(2.484, abs=0.01)
    assert "2.00 ±2.48" in shown(results)


def test_runs_without_a_meter_have_no_joules_and_one_panel_less() -> None:
    without = [result_of("dense", 1, [0.9, 0.9], kind="none")]
    assert summary_of(without)["methods"]["dense"]["joules"] is None
    assert "J: no meter" in shown(without)
    pictures, others = draw(without), draw([result_of("dense", 1, [0.9, 0.9])])
    assert pictures["to-target.png"].startswith(b"\x89PNG")
    assert b"<svg" in pictures["to-target.svg"]
    assert len(others["to-target.svg"]) > len(pictures["to-target.svg"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--accuracy", "1.2"], "1.2 is not a share of the test samples"),
        (["--accuracy", "0"], "0 is not a share of the test samples"),
        (["--methods", "sparsifed"], "did you mean sparsyfed"),
        (["--methods", "topk@much"], "'much' is no sparsity"),
        (["--methods", "topk@1.5"], "--methods has 'topk@1.5'"),
        (["--methods", "topk,topk"], "names topk twice"),
        (["--methods", ","], "names no method"),
        (["--cohort", "9", "--devices", "4"], "there are --devices 4"),
        (["--rounds", "1"], "allowed: 2 or more"),
        (["--meter", "ina"], "energy meter 'ina' is unknown"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["bench", "to-target", *options, "--out", str(tmp_path / "out")])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    options = ["--methods", "dense", "--devices", "2", "--rounds", "3", "--epochs", "1", "--width", "4", "--seeds", "1"]
    return ["bench", "to-target", *options, "--workers", "1", "--out", str(tmp_path / "out")]


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_run_ends_when_the_target_is_held_and_is_made_once(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any model has this accuracy, so two rounds are enough; a round that is open already may still be finished.
    small = [*small, "--rounds", "8"]
    assert cli.main([*small, "--accuracy", "0.001", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    dense = document["methods"]["dense"]
    assert (dense["held"], dense["rounds"]["mean"]) == ([1], 1.0)
    assert dense["joules"]["mean"] > 0
    assert dense["mb_up"]["mean"] > 0
    out = tmp_path / "out"
    kept = json.loads((out / "to-target.json").read_bytes())
    (run,) = kept["runs"]
    assert [point["round"] for point in run["points"]] in ([1, 2], [1, 2, 3])
    assert run["energy_kind"] == "modelled"
    assert {path.name for path in out.iterdir()} == {
        "dense-1.json",
        "to-target.json",
        "to-target.png",
        "to-target.svg",
        "work",
    }
    monkeypatch.setattr(runs, "simulate", None)
    assert cli.main([*small, "--accuracy", "0.001"]) == 0
    assert "seed 1, dense: held from round 1 on" in capsys.readouterr().out
    assert cli.main([*small, "--accuracy", "0.002"]) == 2
    assert "was made with other settings" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_killed_benchmark_goes_on_where_it_was_and_says_that_no_round_held_the_target(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*small, "--accuracy", "1"]
    store = tmp_path / "out" / "work" / "dense-1" / "run.sqlite"
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from sparsyedge.edge.cli import main; sys.exit(main())", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + 300
        while not store.is_file() and process.poll() is None and time.monotonic() < until_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert store.is_file()
    assert cli.main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "dense never held it within 3 rounds (seed 1)" in text
    result = msgspec.json.decode((tmp_path / "out" / "dense-1.json").read_bytes(), type=Result)
    assert [point.round for point in result.points] == [1, 2, 3]
    assert result.cost is None
