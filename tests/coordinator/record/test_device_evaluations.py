"""What the findings of devices come to over a fleet, and how they are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fixtures.reports import plain_report

from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation, figures_of
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.edge.protocol.messages import DataNote, DeviceStatus, LocalEvaluation, Score


def found(device: str, samples: int, loss: float, accuracy: float | None, own: float | None = None) -> DeviceEvaluation:
    return DeviceEvaluation(
        round=1,
        device=device,
        evaluation=0,
        samples=samples,
        held_out=True,
        loss=loss,
        accuracy=accuracy,
        own_loss=loss / 2,
        own_accuracy=own,
        seconds=None,
        joules=None,
        at=0.0,
    )


def test_means_go_by_samples_and_the_worst_tenth_by_devices() -> None:
    figures = figures_of([found("a", 10, 1.0, 0.9, 1.0), found("b", 30, 2.0, 0.5, 0.7)])
    assert figures["eval_global_accuracy"] == pytest.approx(0.6)
    assert figures["eval_global_loss"] == pytest.approx(1.75)
    assert figures["eval_global_accuracy_worst"] == 0.5
    assert figures["eval_global_loss_worst"] == 2.0
    assert figures["eval_global_accuracy_std"] == pytest.approx(0.2)
    assert figures["eval_personal_accuracy"] == pytest.approx((10 * 1.0 + 30 * 0.7) / 40)
    assert (figures["eval_devices"], figures["eval_samples"]) == (2, 40)


def test_the_worst_tenth_of_twenty_devices_are_two() -> None:
    many = [found(f"d{number:02}", 5, 1.0, number / 20) for number in range(20)]
    assert figures_of(many)["eval_global_accuracy_worst"] == pytest.approx((0 / 20 + 1 / 20) / 2)


def test_a_regression_has_the_error_over_all_samples_and_no_accuracy() -> None:
    figures = figures_of([found("a", 10, 1.0, None), found("b", 30, 9.0, None)])
    assert figures["eval_global_rmse"] == pytest.approx(math.sqrt(7.0))
    assert figures["eval_global_rmse_worst"] == 3.0
    assert not any("accuracy" in name for name in figures)


def test_a_device_that_answers_for_another_task_than_most_and_one_without_samples_do_not_count() -> None:
    honest = [found("a", 10, 1.0, 0.5), found("b", 10, 1.0, 0.7)]
    assert figures_of([*honest, found("liar", 10**9, 0.0, None), found("none", 0, 0.0, 1.0)]) == figures_of(honest)


def test_no_findings_are_no_figures() -> None:
    assert figures_of([]) == {}
    assert figures_of([found("none", 0, 0.0, 1.0)]) == {}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.create(tmp_path, name="r1", fleet="lab", rounds=3, dense_bytes=1000, config="{}")) as store:
        yield store


def accept(store: Store, device: str, evaluated: LocalEvaluation, data: DataNote | None = None) -> None:
    store.note_device(device, DeviceStatus(state="online", boot_id="b", samples=40))
    report = msgspec.structs.replace(plain_report(), evaluated=evaluated)
    if data is not None:
        report = msgspec.structs.replace(report, data=data)
    store.accept_update(
        AcceptedUpdate(round=1, device=device, samples=32, sha256="d" * 64, bytes=9, nonzeros=4), report
    )
    # The report comes again after the upload.
    store.add_report(device, report)


EVALUATED = LocalEvaluation(
    samples=8, held_out=True, before=Score(loss=2.0, accuracy=0.25), after=Score(loss=1.0, accuracy=0.75)
)


def test_findings_and_changes_of_data_are_kept_by_round_and_device_and_shown(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.open_round(1, base="a" * 64, base_nonzeros=9, learning_rate=0.1, cohort=("pi-1", "pi-2"))
    accept(store, "pi-1", EVALUATED, DataNote(added=3, broken=1, trouble="apple/half.ppm ends early"))
    accept(store, "pi-2", LocalEvaluation(samples=0))
    (kept,) = store.device_evaluations(round_number=1)
    assert (kept.device, kept.samples, kept.held_out) == ("pi-1", 8, True)
    assert (kept.loss, kept.accuracy, kept.own_loss, kept.own_accuracy) == (2.0, 0.25, 1.0, 0.75)
    (note,) = store.data_notes()
    assert (note.device, note.samples, str(note)) == ("pi-1", 40, "3 new, 1 broken; apple/half.ppm ends early")
    figures = figures_of(store.device_evaluations(round_number=1))
    store.close_round(
        ClosedRound(round=1, model_id="b" * 64, seconds=1.0, global_sparsity=0.5, evaluation=None, metrics=figures)
    )
    assert store.evaluation_figures() == {1: figures}
    head, line = as_csv(store).splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=True))["eval_personal_accuracy"] == "0.75"
    assert store.last_evaluations()["pi-1"] == kept
    store.commit()
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "25.0%" in shown
    assert "75.0%" in shown
    monkeypatch.setenv("COLUMNS", "130")
    assert main(["devices", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "25.0%    75.0%" in shown
    assert "data in round 1: 3 new, 1 broken; apple/half.ppm ends early" in shown


def test_an_evaluation_round_is_kept_with_what_it_came_to(store: Store) -> None:
    number = store.begin_evaluation(round_number=1, model_id="b" * 64, asked=2)
    assert store.evaluation_rounds()[0].ended_at is None
    report = msgspec.structs.replace(plain_report(), evaluated=EVALUATED, evaluation=number)
    store.add_evaluation(number, "pi-1", report, round_number=1)
    ended = store.end_evaluation(number)
    assert ended.ended_at is not None
    assert ended.figures["eval_global_accuracy"] == 0.25
    assert store.device_evaluations(round_number=1) == (), "it is no training round"
    assert store.begin_evaluation(round_number=1, model_id="b" * 64, asked=2) == number + 1
