"""run.sqlite."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sparsyedge.coordinator.record import open_run
from sparsyedge.coordinator.record.metrics import of_evaluation
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.schema import SCHEMA_VERSION
from sparsyedge.coordinator.record.store import STORE_NAME, AcceptedUpdate, ClosedRound, Store
from sparsyedge.edge.errors import RunError, StoreError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import DeviceStatus, Report

MODEL = "c" * 64


def create(run_dir: Path) -> Store:
    return Store.create(run_dir, name="r1", fleet="lab", rounds=3, dense_bytes=1000, config="{}")


def report_of(round_number: int, **changes: object) -> Report:
    report = Report(
        run="r1",
        round=round_number,
        phases={"train": PhaseCost(2.0, 5.0), "encode": PhaseCost(0.5, None)},
        energy_source="rapl",
        energy_kind="measured-rails",
        bytes_down=300,
        bytes_up=0,
        steps=10,
        loss=1.5,
        peak_rss_mb=80.0,
        pid=42,
    )
    return msgspec.structs.replace(report, **changes)


def update_of(round_number: int, device: str) -> AcceptedUpdate:
    return AcceptedUpdate(round=round_number, device=device, samples=50, sha256="d" * 64, bytes=120, nonzeros=40)


def closed(round_number: int, evaluation: Evaluation | None) -> ClosedRound:
    return ClosedRound(round=round_number, model_id=MODEL, seconds=4.0, global_sparsity=0.9, evaluation=evaluation)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A run with one closed round of two devices and an open second one."""
    with closing(create(tmp_path)) as store:
        store.note_device("d1", DeviceStatus(state="online", boot_id="x", samples=50, software="s"))
        store.note_device("d2", DeviceStatus(state="online", boot_id="x"))
        store.note_device("d2", DeviceStatus(state="offline", boot_id="x"))
        store.open_round(1, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=("d1", "d2"))
        store.accept_update(update_of(1, "d1"), report_of(1))
        store.accept_update(update_of(1, "d2"), report_of(1, pid=43))
        store.add_report("d1", report_of(1, bytes_up=130, phases={"upload": PhaseCost(1.0, 1.0)}))
        store.count_refusals({(1, "d3", "not asked"): (2, "not in the cohort")})
        store.count_refusals({(1, "d3", "not asked"): (1, "not in the cohort"), (1, "d1", "late"): (1, "late")})
        store.close_round(closed(1, Evaluation(0.75, 0.5)))
        store.open_round(2, base=MODEL, base_nonzeros=70, learning_rate=0.1, cohort=("d1", "d2"))
        store.accept_update(update_of(2, "d1"), report_of(2, loss=1.25, peak_rss_mb=90.0, pid=77))
    return tmp_path


def test_a_round_is_summed_over_its_accepted_updates(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        (record,) = store.rounds()
    assert (record.updates, record.bytes_up, record.bytes_down, record.dense_bytes) == (2, 240, 600, 1000)
    assert (record.test_accuracy, record.test_loss, record.refused, record.seconds) == (0.75, 0.5, 4, 4.0)
    assert (record.learning_rate, record.model_id) == (0.2, MODEL)
    assert (record.nonzeros_down, record.nonzeros_up) == (1800, 80)


def test_a_device_is_summed_over_its_rounds(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        first, second = store.devices()
    assert (first.id, first.pid, first.rounds, first.steps, first.last_loss) == ("d1", 77, 2, 20, 1.25)
    assert (first.peak_rss_mb, first.bytes_down, first.bytes_up, first.online) == (90.0, 600, 130, True)
    assert first.phases == {
        "train": PhaseCost(4.0, 10.0),
        "encode": PhaseCost(1.0, None),
        "upload": PhaseCost(1.0, 1.0),
    }
    assert (first.energy_source, first.energy_kind) == ("rapl", "measured-rails")
    assert (second.id, second.online) == ("d2", False)


def test_a_device_that_left_keeps_what_it_said_about_itself(filled: Path) -> None:
    with closing(create(filled / "other")) as store:
        store.note_device("d1", DeviceStatus(state="online", boot_id="x", samples=50, software="s"))
        store.note_device("d1", DeviceStatus(state="offline", boot_id="x"))
    with closing(sqlite3.connect(filled / "other" / STORE_NAME)) as db:
        assert db.execute("SELECT online, samples, software FROM devices").fetchall() == [(0, 50, "s")]


def test_why_a_device_is_unfit_is_kept_until_it_is_fit_again(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store:
        store.note_device("d1", DeviceStatus(state="online", boot_id="x", unfit="72 C, may train below 70 C"))
        (hot,) = store.members()
        store.note_device("d1", DeviceStatus(state="online", boot_id="x"))
        (cool,) = store.members()
    assert (hot.online, hot.unfit) == (True, "72 C, may train below 70 C")
    assert (cool.online, cool.unfit) == (True, "")


def test_a_round_that_was_not_evaluated_has_no_accuracy(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        store.close_round(closed(2, None))
        assert store.rounds()[1].test_accuracy is None


def test_a_regression_has_errors_and_no_accuracy(filled: Path) -> None:
    evaluation = Evaluation(None, 4.0, rmse=2.0, r_squared=0.5)
    with closing(Store.open(filled)) as store:
        store.close_round(replace(closed(2, evaluation), metrics=of_evaluation(evaluation)))
        record = store.rounds()[1]
    assert (record.test_accuracy, record.test_loss) == (None, 4.0)
    assert (record.test_rmse, record.test_r_squared) == (2.0, 0.5)
    assert record.quality == "RMSE 2, R2 0.500"


def test_an_error_that_is_no_number_is_not_recorded_as_one(filled: Path) -> None:
    evaluation = Evaluation(None, math.nan, rmse=math.nan)
    with closing(Store.open(filled)) as store:
        store.close_round(replace(closed(2, evaluation), metrics=of_evaluation(evaluation)))
        record = store.rounds()[1]
    assert (record.test_loss, record.test_rmse, record.test_r_squared) == (None, None, None)


def test_runs_of_classes_have_no_columns_for_errors(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        assert "rmse" not in as_csv(store)


def test_a_second_update_of_a_device_in_a_round_cannot_be_recorded(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        with pytest.raises(sqlite3.IntegrityError):
            store.accept_update(update_of(1, "d1"), report_of(1, pid=99))
        assert store.samples(1) == {"d1": 50, "d2": 50}


def test_a_report_without_an_accepted_update_is_not_taken(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        assert not store.add_report("d2", report_of(2))
        assert not store.add_report("stranger", report_of(1))


def test_a_stop_request_reaches_another_process(filled: Path) -> None:
    with closing(Store.open(filled)) as running, closing(Store.open(filled)) as other:
        assert not running.stop_requested()
        other.request_stop()
        assert running.stop_requested()


def test_the_end_of_a_run_is_recorded(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        assert store.run().state == "running"
        store.end_run("finished", model_sha256="e" * 64)
        run = store.run()
    assert (run.state, run.model_id, run.model_sha256) == ("finished", MODEL, "e" * 64)


def test_a_run_is_never_overwritten(filled: Path) -> None:
    with pytest.raises(RunError, match="already holds a run; choose another `run_dir`"):
        create(filled)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"no run in {tmp_path}"):
        Store.open(tmp_path)


def test_a_store_of_another_version_is_refused(filled: Path) -> None:
    with closing(sqlite3.connect(filled / STORE_NAME)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(RunError, match=f"has version 99, this sparsyedge reads version {SCHEMA_VERSION}"):
        Store.open(filled)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / STORE_NAME).write_bytes(b"not a database at all, but long enough to be read as a header" * 20)
    with pytest.raises(StoreError, match=r"run\.sqlite is damaged: file is not a database; restore it"):
        Store.open(tmp_path)


def test_the_store_is_written_ahead_and_synced(filled: Path) -> None:
    with closing(Store.open(filled)) as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert store._db.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_scripts_get_a_run_as_tables_whose_rows_have_the_same_keys(filled: Path) -> None:
    with open_run(filled) as run:
        tables = {name: getattr(run, name)() for name in ("rounds", "devices", "phases", "refusals")}
        assert run.run()["name"] == "r1"
    for name, rows in tables.items():
        assert len({tuple(row) for row in rows}) <= 1, name
        assert all(isinstance(value, str | int | float | None) for row in rows for value in row.values()), name
    assert [row["round"] for row in tables["rounds"]] == [1]
    assert {row["phase"] for row in tables["phases"]} == {"train", "encode", "upload"}


# ---- commits that are shared -----------------------------------------------------------------------------------------


def test_what_may_wait_is_durable_with_the_next_commit_and_not_before(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store, closing(Store.open(tmp_path)) as reader:
        store.hold()
        store.note_device("d1", DeviceStatus(state="online", boot_id="x", samples=50))
        store.accept_update(update_of(1, "d1"), report_of(1))
        assert store.accepted(1).keys() == {"d1"}
        assert reader.accepted(1) == {}
        store.commit()
        assert reader.accepted(1).keys() == {"d1"}
        assert [member.device for member in reader.members()] == ["d1"]


def test_another_write_takes_what_waits_along(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store, closing(Store.open(tmp_path)) as reader:
        store.hold()
        store.accept_update(update_of(1, "d1"), report_of(1))
        store.touch()
        assert reader.accepted(1).keys() == {"d1"}


def test_frames_are_synced_once_before_the_commit_that_refers_to_them(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store, closing(Store.open(tmp_path)) as reader:
        seen = []
        store.before_commit = lambda: seen.append(len(reader.accepted(1)))
        store.hold()
        for device in ("d1", "d2", "d3"):
            store.accept_update(update_of(1, device), report_of(1))
        for _ in range(2):
            store.commit()
        assert (seen, len(reader.accepted(1))) == ([0], 3)


def test_nothing_is_recorded_if_the_frames_cannot_be_synced(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with closing(create(tmp_path)) as store, closing(Store.open(tmp_path)) as reader:
        store.hold()
        store.accept_update(update_of(1, "d1"), report_of(1))
        store.before_commit = full
        with pytest.raises(OSError, match="No space left"):
            store.commit()
        store.before_commit = None
        store.end_run("failed", reason="the disk is full")
        assert (reader.accepted(1), reader.run().state) == ({}, "failed")
