"""`sparsyedge bench codecs`: verdicts from tables, and one small benchmark for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsyedge.benchmarks.codecs import command as codecs
from sparsyedge.benchmarks.codecs.command import Result, Settings, default_codec, verdict
from sparsyedge.benchmarks.common.paired import Interval
from sparsyedge.edge import cli
from sparsyedge.edge.wire.codecs import Codec

SETTINGS = Settings(
    dataset="digits",
    devices=4,
    cohort=2,
    rounds=2,
    width=4,
    sparsity=0.9,
    alpha=1.0,
    learning_rate=0.1,
    last_learning_rate=0.05,
)


def result_of(codec: Codec, seed: int, accuracy: float, sent: int) -> Result:
    return Result(
        codec=codec,
        seed=seed,
        settings=SETTINGS,
        test_accuracy=accuracy,
        test_loss=1.0,
        global_sparsity=0.9,
        bytes_down=sent,
        bytes_up=sent,
        nonzeros_down=1,
        nonzeros_up=1,
        dense_bytes=10_000,
        model_id="0" * 64,
        machine={},
    )


def results_with(bf16: list[float], int8: list[float]) -> list[Result]:
    runs: dict[Codec, tuple[list[float], int]] = {
        "lossless": ([0.60, 0.62, 0.61], 900),
        "bf16": (bf16, 300),
        "int8": (int8, 200),
    }
    return [
        result_of(codec, seed, accuracy, sent)
        for codec, (accuracies, sent) in runs.items()
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(-0.1, -0.4, 0.2, 5), "within 0.5 points"),
        (Interval(-0.3, -0.45, -0.1, 5), "within 0.5 points"),
        (Interval(-0.3, -1.2, 0.6, 5), "not distinguishable"),
        (Interval(-0.9, -1.4, -0.2, 5), "worse"),
        (Interval(0.8, 0.3, 1.3, 5), "within 0.5 points"),
    ],
)
def test_verdict_follows_from_the_interval(interval: Interval, expected: str) -> None:
    assert verdict(interval) == expected


def test_default_is_the_smallest_codec_that_costs_nothing() -> None:
    equal = [0.601, 0.619, 0.61]
    worse = [0.57, 0.589, 0.581]
    assert default_codec(results_with(bf16=equal, int8=equal)) == "int8"
    assert default_codec(results_with(bf16=equal, int8=worse)) == "bf16"
    assert default_codec(results_with(bf16=worse, int8=worse)) == "lossless"


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    options = ["--dataset", "digits", "--devices", "4", "--cohort", "2", "--rounds", "2", "--width", "4"]
    return ["bench", "codecs", *options, "--learning-rate", "0.1", "--seeds", "1", "--out", str(tmp_path / "out")]


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_runs_are_made_once_and_kept_one_by_one(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main([*small, "--workers", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["codecs"]) == {"lossless", "bf16", "int8"}
    assert document["settings"]["rounds"] == 2
    sent = {name: codec["bytes"][0] for name, codec in document["codecs"].items()}
    assert max(sent["bf16"], sent["int8"]) < sent["lossless"]
    names = {path.name for path in (tmp_path / "out").glob("*.json")}
    assert names == {"lossless-1.json", "bf16-1.json", "int8-1.json"}
    # Nothing of the runs but their artifacts is left.
    assert [path.name for path in (tmp_path / "out" / "work").iterdir()] == ["artifacts-1"]

    monkeypatch.setattr(codecs, "simulate", None)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("not distinguishable" in line and "int8" in line for line in lines)

    assert cli.main([*small, "--alpha", "0.5"]) == 2
    assert "was made with other settings" in capsys.readouterr().err


def test_a_file_that_is_no_result_is_named(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lossless-1.json").write_text("{}")
    assert cli.main(small) == 2
    assert "lossless-1.json is not a result of this benchmark" in capsys.readouterr().err
