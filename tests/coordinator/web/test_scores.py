"""What the page shows of evaluations on devices, and of what devices say of themselves."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.page_runs import HOSTILE, accept, names, scores, write_run

from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation, figures_of
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.web.answers import device_answer
from sparsyedge.coordinator.web.picture import RunPicture
from sparsyedge.coordinator.web.scores import NO_SCORES, on_devices
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Report


@pytest.fixture(scope="module")
def evaluated_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("web") / "run", rounds=3, evaluates=True)


@pytest.fixture
def run_dir(tmp_path: Path, evaluated_run: Path) -> Path:
    shutil.copytree(evaluated_run, tmp_path / "run")
    return tmp_path / "run"


def found(*, loss: float | None, accuracy: float | None = None, own_loss: float | None = None) -> DeviceEvaluation:
    return DeviceEvaluation(
        round=4,
        device="pi-000",
        evaluation=0,
        samples=10,
        held_out=False,
        loss=loss,
        accuracy=accuracy,
        own_loss=own_loss,
        own_accuracy=None,
        seconds=None,
        joules=None,
        at=0.0,
    )


def answer_evaluation(store: Store, number: int, device: str, *, round_number: int) -> None:
    """Record what a device finds in an evaluation round, better than ever before."""
    report = Report(
        run="digits",
        round=round_number,
        phases={"evaluate": PhaseCost(1.0, None)},
        energy_source="none",
        energy_kind="none",
        bytes_down=0,
        bytes_up=0,
        steps=0,
        loss=0.0,
        peak_rss_mb=90.0,
        pid=42,
        evaluated=scores(8, device, own=False),
        evaluation=number,
    )
    store.add_evaluation(number, device, report, round_number=round_number)


def test_a_round_shows_the_means_and_the_worst_tenth_of_its_devices(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture:
        picture.look()
        last = picture.whole()["rounds"][-1]["on_devices"]
    assert (last["kind"], last["devices"]) == ("accuracy", 6)
    assert last["given"] == pytest.approx(0.625)
    assert last["given_worst"] == pytest.approx(0.60)
    assert last["own"] == pytest.approx(0.825)
    assert last["own_worst"] == pytest.approx(0.80)


def test_a_round_without_evaluations_on_devices_shows_none(tmp_path: Path) -> None:
    with closing(RunPicture(write_run(tmp_path / "run", rounds=1))) as picture:
        picture.look()
        whole = picture.whole()
    assert whole["rounds"][0]["on_devices"] is None
    assert {(row["given"], row["own"]) for row in whole["devices"]} == {(None, None)}


def test_each_device_shows_its_last_scores(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture, closing(Store.open(run_dir)) as store:
        picture.look()
        rows = {row["id"]: row for row in picture.whole()["devices"]}
        assert (rows["pi-002"]["given"], rows["pi-002"]["own"]) == pytest.approx((0.63, 0.83))
        assert rows["pi-002"]["scored"] == 3
        accept(store, 4, "pi-004", evaluates=True)
        store.commit()
        (row,) = picture.look()["devices"]
    assert (row["id"], row["given"], row["own"], row["scored"]) == (
        "pi-004",
        pytest.approx(0.66),
        pytest.approx(0.86),
        4,
    )


def test_an_evaluation_round_changes_the_score_of_the_global_model_alone(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture, closing(Store.open(run_dir)) as store:
        picture.look()
        number = store.begin_evaluation(round_number=3, model_id="c" * 64, asked=6)
        assert "under way, 6 devices were asked" in picture.look()["run"]["evaluations"][0]
        answer_evaluation(store, number, "pi-001", round_number=3)
        store.end_evaluation(number)
        store.commit()
        change = picture.look()
    assert "after round 3: accuracy 89.0% (worst tenth 89.0%" in change["run"]["evaluations"][0]
    (row,) = change["devices"]
    assert (row["given"], row["own"]) == pytest.approx((0.89, 0.84))
    answer = device_answer(run_dir, "pi-001")
    assert answer is not None
    assert [(each["evaluation"], each["given"]) for each in answer["evaluations"]] == [(1, pytest.approx(0.89))]


def test_a_devices_page_has_its_scores_settings_data_model_and_upgrade(run_dir: Path) -> None:
    answer = device_answer(run_dir, "pi-000")
    assert answer is not None
    assert [entry["given"] for entry in answer["rounds"]] == pytest.approx([0.55, 0.60, 0.65, None])
    assert [entry["own"] for entry in answer["rounds"]] == pytest.approx([0.75, 0.80, 0.85, None])
    assert answer["settings"] == "Python 3.11.2, aarch64, 4 threads, trains below 80 C"
    assert answer["data"] == [{"round": 1, "note": f"12 new, 1 broken; {HOSTILE}.png"}]
    with closing(RunPicture(run_dir)) as picture:
        picture.look()
        row = picture.whole()["devices"][0]
    assert (row["model_round"], row["predict_ms"], row["upgrade"]) == (3, 4.25, "refused")
    assert row["upgrade_reason"].startswith("expired ")


def test_a_regression_shows_the_root_of_its_loss() -> None:
    shown = on_devices(figures_of([found(loss=4.0, own_loss=1.0)]))
    assert shown is not None
    assert (shown["kind"], shown["given"], shown["own"], shown["own_worst"]) == ("rmse", 2.0, 1.0, 1.0)
    last = NO_SCORES.then(found(loss=4.0, own_loss=1.0))
    assert (last.given, last.own, last.is_regression) == (2.0, 1.0, True)


def test_a_score_of_another_task_is_not_kept_beside_a_new_one() -> None:
    regression = NO_SCORES.then(found(loss=4.0, own_loss=1.0))
    assert regression.then(found(loss=0.5, accuracy=0.8)) == (0.8, None, 4, False)
    assert regression.then(found(loss=None)) == regression


def test_every_devices_last_score_is_that_of_the_store(run_dir: Path) -> None:
    with closing(RunPicture(run_dir)) as picture, closing(Store.open(run_dir)) as store:
        picture.look()
        shown = {row["id"]: row["given"] for row in picture.whole()["devices"]}
        last = store.last_evaluations()
    assert shown == {name: last[name].accuracy for name in names(6)}
