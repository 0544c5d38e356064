"""What a person sees of a run that is under way."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from sparsyedge.benchmarks.common.progress import LiveProgress
from sparsyedge.coordinator.record.records import RoundRecord

CLOSED = RoundRecord(
    round=699,
    test_accuracy=0.987,
    test_loss=0.1,
    global_sparsity=0.9512,
    seconds=123.4,
    learning_rate=0.5,
    model_id="a" * 64,
    bytes_down=400,
    bytes_up=40,
    nonzeros_down=1,
    nonzeros_up=1,
    dense_bytes=4000,
    updates=1,
    refused=0,
)


def test_a_closed_round_is_one_line_of_eighty_columns_that_says_how_long_the_rest_takes() -> None:
    out = io.StringIO()
    with LiveProgress(Console(file=out, width=80)) as progress:
        progress.round_opened(round_number=699, rounds=700, cohort=("a",), learning_rate=0.5)
        progress.round_closed(CLOSED)
    lines = [line.strip() for line in out.getvalue().splitlines() if "acc 98.7%" in line]
    assert lines == ["699/700: acc 98.7%, sparse 0.9512, down 10.0x, up 100.0x, 123 s; 0 s left"]
    # Minutes may take four more.
    assert len(lines[0]) <= 76


def test_a_round_of_a_regression_shows_its_error_and_no_accuracy() -> None:
    out = io.StringIO()
    with LiveProgress(Console(file=out, width=80)) as progress:
        progress.round_opened(round_number=699, rounds=700, cohort=("a",), learning_rate=0.5)
        progress.round_closed(replace(CLOSED, test_accuracy=None, test_rmse=53.217))
    assert "699/700: RMSE 53.22, sparse 0.9512," in out.getvalue()
    assert "acc" not in out.getvalue()


def test_a_round_that_goes_on_after_a_restart_knows_how_many_there_are() -> None:
    out = io.StringIO()
    with LiveProgress(Console(file=out, width=80)) as progress:
        progress.round_resumed(round_number=699, rounds=700, accepted=0, cohort=("a",))
        progress.round_closed(CLOSED)
    # A part of it was done before: nothing can be told of how long the others take.
    assert "699/700: acc 98.7%, sparse 0.9512, down 10.0x, up 100.0x, 123 s\n" in out.getvalue()
