"""`sparsyedge coordinator`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.edge.errors import ConfigError, RunError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Report


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with one closed round."""
    report = Report(
        run="r1",
        round=1,
        phases={"train": PhaseCost(2.0, 5.0)},
        energy_source="rapl",
        energy_kind="measured-rails",
        bytes_down=300,
        bytes_up=120,
        steps=10,
        loss=1.5,
        peak_rss_mb=80.0,
        pid=42,
    )
    update = AcceptedUpdate(round=1, device="d1", samples=5, sha256="d" * 64, bytes=120, nonzeros=40)
    closed = ClosedRound(
        round=1, model_id="c" * 64, seconds=4.0, global_sparsity=0.95, evaluation=Evaluation(0.925, 0.3)
    )
    with closing(Store.create(tmp_path, name="r1", fleet="lab", rounds=8, dense_bytes=1000, config="{}")) as store:
        store.open_round(1, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=("d1",))
        store.accept_update(update, report)
        store.count_refusals({(1, "d2", "late"): (3, "[red]late[/red]")})
        store.close_round(closed)
    return tmp_path


def test_status_prints_tables(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["status", str(run_dir)]) == 0
    printed = capsys.readouterr().out
    assert "run r1 of fleet lab: running, 1 of 8 rounds closed; process" in printed
    # Dense is 1000 bytes: 120 bytes and 40 values went up, 900 values down.
    for text in ("92.5%", "0.9500", "d1", " 2.0 ", " 5.0 ", "measured-rails (rapl)", " 8.3x ", " 6.2x ", " 0.3x "):
        assert text in printed
    assert "refused 3x in round 1 from d2: [red]late[/red]" in printed


def test_status_as_json_is_one_document(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run_dir), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rounds"][0]["test_accuracy"] == 0.925
    assert document["devices"][0]["phases"]["train"] == {"seconds": 2.0, "joules": 5.0}
    assert document["run"]["name"] == "r1"
    assert document["run_dir"] == str(run_dir)


def test_stop_leaves_a_request(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", str(run_dir)]) == 0
    assert "will finish after the round that is open" in capsys.readouterr().out
    with closing(Store.open(run_dir)) as store:
        assert store.stop_requested()


def test_stop_of_a_run_that_is_over_says_so(run_dir: Path) -> None:
    with closing(Store.open(run_dir)) as store:
        store.end_run("finished")
    with pytest.raises(RunError, match="is finished already; there is nothing to stop"):
        main(["stop", str(run_dir)])


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_missing_run_is_named(command: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run in"):
        main([command, str(tmp_path / "absent")])


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        main(["run", str(tmp_path / "absent.toml")])


def test_a_run_is_paused_and_goes_on(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", str(run_dir)]) == 0
    with closing(Store.open(run_dir)) as store:
        assert store.requests() == {"pause"}
    assert main(["resume", str(run_dir)]) == 0
    with closing(Store.open(run_dir)) as store:
        assert store.requests() == frozenset()
    assert "will open no round after the one that is open" in capsys.readouterr().out
    with pytest.raises(RunError, match="is not paused"):
        main(["resume", str(run_dir)])


def test_a_run_that_is_over_cannot_be_paused(run_dir: Path) -> None:
    with closing(Store.open(run_dir)) as store:
        store.end_run("finished")
    with pytest.raises(RunError, match="is finished already; there is nothing to pause"):
        main(["pause", str(run_dir)])


def test_devices_shows_everybody_with_what_was_refused(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["devices", str(run_dir)]) == 0
    printed = capsys.readouterr().out
    assert "d1" in printed
    assert "5.0 J" in printed
    assert "    refused in round 1 (3x): [red]late[/red]" in printed
    assert main(["devices", str(run_dir), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["devices"]
    assert (first["device"], first["last_round"], first["updates"], first["seconds"]) == ("d1", 1, 1, 2.0)
    assert (first["bytes_down"], first["bytes_up"], first["joules"], first["refusals"]) == (300, 120, 5.0, [])
    assert first["seen_at"] > 0
    assert (second["device"], second["last_round"], second["joules"], second["state"]) == ("d2", None, None, "offline")
    assert second["refusals"][0]["count"] == 3
