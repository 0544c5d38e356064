"""The selection benchmark: what a run took to its target, and what seeds come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsyedge.benchmarks.selection import command as selection
from sparsyedge.benchmarks.selection.fleet import BOARDS
from sparsyedge.benchmarks.selection.result import Outcome, outcome_of, summary_of, table_of
from sparsyedge.coordinator.record.records import PhaseRecord, RoundRecord


def round_of(number: int, accuracy: float) -> RoundRecord:
    return RoundRecord(
        round=number,
        test_accuracy=accuracy,
        test_loss=1.0,
        global_sparsity=0.8,
        bytes_down=0,
        bytes_up=0,
        nonzeros_down=0,
        nonzeros_up=0,
        dense_bytes=0,
        updates=2,
        refused=0,
        seconds=1.0,
        learning_rate=0.1,
        model_id="c" * 64,
    )


def phase_of(number: int, device: str, seconds: float, joules: float) -> PhaseRecord:
    return PhaseRecord(round=number, device=device, phase="train", seconds=seconds, joules=joules, kind="modelled")


ROUNDS = [round_of(1, 0.5), round_of(2, 0.9), round_of(3, 0.8)]
PHASES = [
    phase_of(1, "d1", 10.0, 20.0),
    phase_of(1, "d2", 4.0, 6.0),
    phase_of(2, "d1", 10.0, 20.0),
    phase_of(2, "d3", 12.0, 30.0),
    phase_of(3, "d2", 4.0, 6.0),
]


def test_a_round_takes_as_long_as_its_slowest_device_and_the_joules_of_all() -> None:
    outcome = outcome_of("uniform", 0, ROUNDS, PHASES, target=90.0)
    assert (outcome.reached, outcome.rounds, outcome.seconds, outcome.joules) == (True, 2, 22.0, 76.0)
    assert (outcome.last_accuracy, outcome.asked) == (80.0, 3)
    assert (outcome.round_seconds, outcome.round_joules) == (26 / 3, 82 / 3)


def test_a_run_that_never_reaches_its_target_counts_as_a_whole_and_says_so() -> None:
    outcome = outcome_of("uniform", 0, ROUNDS, PHASES, target=95.0)
    assert (outcome.reached, outcome.rounds, outcome.seconds, outcome.joules) == (False, 3, 26.0, 82.0)


def test_differences_are_of_pairs_with_the_same_seed() -> None:
    def runs(name: str, seconds: list[float]) -> list[Outcome]:
        return [
            Outcome(
                policy="uniform" if name == "uniform" else "energy",
                seed=seed,
                reached=True,
                rounds=2,
                seconds=each,
                joules=2 * each,
                round_seconds=each / 2,
                round_joules=each,
                last_accuracy=90.0,
                asked=3,
            )
            for seed, each in enumerate(seconds)
        ]

    outcomes = {"uniform": runs("uniform", [100.0, 200.0, 300.0]), "energy": runs("energy", [90.0, 190.0, 290.0])}
    summary = summary_of(outcomes)  # type: ignore[arg-type]
    assert summary["energy"]["seconds_more"] == [-10.0, -10.0, -10.0]
    assert "seconds_more" not in summary["uniform"]
    assert "| energy | 3 of 3 |" in table_of(outcomes)  # type: ignore[arg-type]
    assert "-10 (-10 to -10)" in table_of(outcomes)  # type: ignore[arg-type]


def test_a_slower_board_takes_more_joules_for_a_step() -> None:
    seconds = [BOARDS[name].step_s for name in ("pi-3", "pi-4", "pi-5")]
    joules = [BOARDS[name].step_j or 0.0 for name in ("pi-3", "pi-4", "pi-5")]
    assert seconds == sorted(seconds, reverse=True)
    assert joules == sorted(joules, reverse=True)


@pytest.mark.heavy
def test_small_runs_end_in_a_document_and_are_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--rounds", "2", "--devices", "6", "--cohort", "2", "--width", "8", "--seeds", "1", "--workers", "1"]
    assert selection.main([*command, "--json", "--out", str(tmp_path)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["kind"] == "modelled"
    assert set(first["selections"]) == {"uniform", "round-robin", "energy", "fast", "data"}
    assert all(run["seconds"] > 0 and run["joules"] > 0 for run in first["runs"])
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("seed-0/*/model.onnx")}
    assert len(written) == 5
    assert selection.main([*command, "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == first["runs"]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.glob("seed-0/*/model.onnx")}
