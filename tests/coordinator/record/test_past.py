"""What a run has on record of its devices when it chooses a cohort."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from sparsyedge.coordinator.record.store import STORE_NAME, AcceptedUpdate, ClosedRound, Store
from sparsyedge.coordinator.rounds.past import Past
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Report

REPORT = Report(
    run="r1",
    round=1,
    phases={"download": PhaseCost(1.0, 9.0), "train": PhaseCost(4.0, 20.0), "encode": PhaseCost(0.5, None)},
    energy_source="rapl",
    energy_kind="measured-rails",
    bytes_down=300,
    bytes_up=0,
    steps=10,
    loss=1.5,
    peak_rss_mb=80.0,
    pid=42,
    loss_rms=1.75,
)


def create(run_dir: Path) -> Store:
    return Store.create(run_dir, name="r1", fleet="lab", rounds=3, dense_bytes=1000, config="{}")


def play(store: Store, round_number: int, cohort: tuple[str, ...], reports: dict[str, Report]) -> None:
    """A round whose cohort is larger than those who answer."""
    store.open_round(round_number, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=cohort)
    for device, report in reports.items():
        update = AcceptedUpdate(round=round_number, device=device, samples=50, sha256="d" * 64, bytes=120, nonzeros=40)
        store.accept_update(update, msgspec.structs.replace(report, round=round_number))
    store.close_round(
        ClosedRound(round=round_number, model_id="c" * 64, seconds=4.0, global_sparsity=0.9, evaluation=None)
    )


def test_the_last_report_and_the_last_turn_count(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store:
        slower = msgspec.structs.replace(REPORT, phases={"train": PhaseCost(8.0, 30.0)}, loss_rms=1.0)
        play(store, 1, ("d1", "d2", "d3"), {"d1": REPORT, "d2": REPORT})
        play(store, 2, ("d1", "d4"), {"d1": slower})
        play(store, 3, ("d2",), {})
        assert store.past() == {
            "d1": Past(last_asked=2, seconds=8.0, joules_per_sample=0.6, loss=1.0, samples=50),
            "d2": Past(last_asked=3, seconds=5.5, joules_per_sample=0.4, loss=1.75, samples=50),
            "d3": Past(last_asked=1),
            "d4": Past(last_asked=2),
        }


def test_what_a_device_adds_after_its_upload_changes_nothing(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store:
        play(store, 1, ("d1",), {"d1": REPORT})
        before = store.past()
        late = msgspec.structs.replace(REPORT, phases={**REPORT.phases, "upload": PhaseCost(100.0, 500.0)})
        assert store.add_report("d1", late)
        assert store.past() == before


def test_a_round_that_is_open_is_nobodys_turn_yet(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store:
        store.open_round(1, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=("d1",))
        assert store.past() == {}


def test_a_device_without_a_meter_has_no_joules_and_an_older_one_its_mean_loss(tmp_path: Path) -> None:
    older = msgspec.structs.replace(REPORT, phases={"train": PhaseCost(4.0, None)}, loss_rms=msgspec.UNSET)
    with closing(create(tmp_path)) as store:
        play(store, 1, ("d1",), {"d1": older})
        assert store.past() == {"d1": Past(last_asked=1, seconds=4.0, loss=1.5, samples=50)}


def test_a_store_that_was_made_without_the_table_of_losses_is_read_and_goes_on(tmp_path: Path) -> None:
    with closing(create(tmp_path)) as store:
        play(store, 1, ("d1",), {"d1": REPORT})
    with closing(sqlite3.connect(tmp_path / STORE_NAME)) as db:
        db.execute("DROP TABLE device_losses")
    with closing(Store.open(tmp_path)) as store:
        assert store.past()["d1"].loss == 1.5
        play(store, 2, ("d1",), {"d1": REPORT})
        assert store.past()["d1"].loss == 1.75
