"""The page of metrics, as Prometheus reads it."""

from __future__ import annotations

import json
import re
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.many_devices import activity_of, present_of, write_run
from fixtures.prometheus import promtool, scraping, serving
from fixtures.scripted_fleet import Fleet
from fixtures.web_server import unused_port
from prometheus_client.parser import text_string_to_metric_families

from sparsyedge.coordinator.record.live import LiveRecord
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.coordinator.web.metrics import render
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.phase_costs import PhaseCost
from sparsyedge.edge.protocol.messages import Accepted, DeviceStatus, Report

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"
HOSTILE = 'pi"} 1\n# TYPE up gauge\nup 0\n\\'


def page_of(run_dir: Path, **options: int) -> str:
    return render(run_dir, **options)[0].decode()


def values_of(page: str) -> dict[str, float]:
    """Every sample as Prometheus writes it, e.g. `sparsyedge_devices{state="online"}`; no two may be the same."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in values
            values[name] = sample.value
    return values


def report_of(number: int, **phases: PhaseCost) -> Report:
    return Report(
        run="r1",
        round=number,
        phases=phases or {"train": PhaseCost(2.0, 5.0), "encode": PhaseCost(0.5, None)},
        energy_source="rapl",
        energy_kind="measured-rails",
        bytes_down=300,
        bytes_up=120,
        steps=10,
        loss=1.5,
        peak_rss_mb=80.0,
        pid=42,
    )


def deliver(store: Store, number: int, *devices: str, **phases: PhaseCost) -> None:
    for device in devices:
        update = AcceptedUpdate(round=number, device=device, samples=50, sha256="d" * 64, bytes=120, nonzeros=40)
        store.accept_update(update, report_of(number, **phases))


def open_round(store: Store, number: int, *cohort: str) -> None:
    store.open_round(number, base="a" * 64, base_nonzeros=900, learning_rate=0.2, cohort=cohort)


def close_round(store: Store, number: int, evaluation: Evaluation | None = None) -> None:
    store.close_round(
        ClosedRound(round=number, model_id="c" * 64, seconds=4.0, global_sparsity=0.9, evaluation=evaluation)
    )


def join(store: Store, *devices: str) -> None:
    for device in devices:
        store.note_device(device, DeviceStatus(state="online", boot_id="x", software="sparsyedge 0.3.0"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with one closed round of two devices and an open second one."""
    folder = tmp_path / "run"
    with closing(Store.create(folder, name="r1", fleet="lab", rounds=3, dense_bytes=1000, config="{}")) as store:
        join(store, "d1", "d2")
        open_round(store, 1, "d1", "d2")
        deliver(store, 1, "d1", "d2")
        store.count_refusals({(1, "d1", "late"): (3, "late"), (1, "stranger", "forged"): (1, "forged")})
        close_round(store, 1, Evaluation(0.75, 0.5))
        open_round(store, 2, "d1", "d2")
        deliver(store, 2, "d1")
        store.note_device("d2", DeviceStatus(state="offline", boot_id="x"))
    return folder


def test_the_page_has_the_sums_of_the_run_by_device_and_phase(run_dir: Path) -> None:
    values = values_of(page_of(run_dir))
    assert values["sparsyedge_rounds_closed_total"] == 1
    assert values["sparsyedge_run_planned_rounds"] == 3
    assert values['sparsyedge_run_state{state="running"}'] == 1
    assert values['sparsyedge_run_state{state="paused"}'] == 0
    assert values["sparsyedge_coordinator_up"] == 1
    assert values["sparsyedge_model_accuracy_ratio"] == 0.75
    assert values["sparsyedge_model_loss"] == 0.5
    assert values["sparsyedge_model_sparsity_ratio"] == 0.9
    assert values["sparsyedge_round_duration_seconds_sum"] == 4.0
    assert values['sparsyedge_devices{state="online"}'] == 1
    assert values['sparsyedge_device_online{device="d2"}'] == 0
    assert values['sparsyedge_device_info{device="d1",version="0.3.0"}'] == 1
    assert values['sparsyedge_updates_total{result="accepted"}'] == 3
    assert values['sparsyedge_updates_total{result="forged"}'] == 1
    assert values['sparsyedge_refusals_total{kind="late"}'] == 3
    assert values['sparsyedge_device_refusals_total{device="d1"}'] == 3
    assert values['sparsyedge_device_updates_total{device="d1"}'] == 2
    assert values['sparsyedge_device_phase_seconds_total{device="d1",phase="train"}'] == 4.0
    assert values['sparsyedge_device_phase_joules_total{device="d1",phase="train"}'] == 10.0
    assert 'sparsyedge_device_phase_joules_total{device="d1",phase="encode"}' not in values
    assert values['sparsyedge_joules_total{kind="measured-rails"}'] == 15.0
    assert values['sparsyedge_phase_seconds_total{phase="train"}'] == 6.0
    assert values['sparsyedge_transferred_bytes_total{direction="down"}'] == 900


def test_what_the_run_does_right_now_comes_from_the_live_record(run_dir: Path) -> None:
    assert "sparsyedge_run_stage" not in page_of(run_dir)
    with closing(LiveRecord(run_dir)) as live:
        live.note(activity_of("d1"))
        live.flush(present_of(round_number=2, online=1, sentence="round 2 waits for d2\nup 0"))
    page = page_of(run_dir)
    values = values_of(page)
    assert values['sparsyedge_run_stage{stage="open"}'] == 1
    assert values['sparsyedge_run_stage{stage="waiting"}'] == 0
    assert values["sparsyedge_round_awaited_updates"] == 1
    assert (values["sparsyedge_uploads"], values["sparsyedge_offers_waiting"]) == (1, 4)
    assert values["sparsyedge_inbox_messages"] == 3
    assert values["sparsyedge_coordinator_cpu_seconds_total"] == 12.5
    assert values["sparsyedge_coordinator_resident_memory_bytes"] == 100_000_000
    assert values['sparsyedge_device_temperature_celsius{device="d1"}'] == 61.5
    assert values['sparsyedge_device_battery_ratio{device="d1"}'] == 0.8
    assert page.startswith("# now: round 2 waits for d2 up 0\n")


def test_what_a_dead_coordinator_said_last_is_not_shown_as_the_present(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(LiveRecord(run_dir)) as live:
        live.note(activity_of("d1"))
        live.flush(present_of(round_number=2, online=1))
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    values = values_of(page_of(run_dir))
    assert values["sparsyedge_coordinator_up"] == 0
    assert "sparsyedge_uploads" not in values
    assert 'sparsyedge_device_temperature_celsius{device="d1"}' not in values
    assert values["sparsyedge_since_round_closed_seconds"] == pytest.approx(3600, abs=60)


def test_sums_grow_with_each_round_and_with_a_report_that_comes_after_it(run_dir: Path) -> None:
    """The page keeps the sums of settled rounds; a page that starts later comes to the same."""
    for number in range(2, 8):
        page_of(run_dir)
        with closing(Store.open(run_dir)) as store:
            if number > 2:
                open_round(store, number, "d1", "d2")
                deliver(store, number, "d1")
            deliver(store, number, "d2")
            close_round(store, number)
            store.add_report("d1", report_of(number, train=PhaseCost(2.0, 5.0), upload=PhaseCost(1.0, 1.0)))
    values = values_of(page_of(run_dir))
    assert values['sparsyedge_device_updates_total{device="d1"}'] == 7
    assert values['sparsyedge_device_phase_seconds_total{device="d1",phase="train"}'] == 14.0
    assert values['sparsyedge_device_phase_seconds_total{device="d1",phase="upload"}'] == 6.0
    elsewhere = run_dir.with_name("moved")
    shutil.move(run_dir, elsewhere)
    afresh = values_of(page_of(elsewhere))
    passing = {name for name in values if "since_round_closed" in name}
    assert {name: afresh[name] for name in values.keys() - passing} == {
        name: values[name] for name in values.keys() - passing
    }


def test_another_run_in_the_same_folder_starts_its_sums_at_zero(run_dir: Path) -> None:
    for number in range(2, 6):
        with closing(Store.open(run_dir)) as store:
            if number > 2:
                open_round(store, number, "d1")
                deliver(store, number, "d1")
            close_round(store, number)
    assert values_of(page_of(run_dir))['sparsyedge_updates_total{result="accepted"}'] == 6
    shutil.rmtree(run_dir)
    write_run(run_dir, devices=2, rounds=1)
    assert values_of(page_of(run_dir))['sparsyedge_updates_total{result="accepted"}'] == 2


def test_a_hostile_device_can_neither_write_lines_nor_make_series(run_dir: Path) -> None:
    with closing(Store.open(run_dir)) as store:
        store.note_device(HOSTILE, DeviceStatus(state="online", boot_id="x", software=HOSTILE))
        long = "x" * 200
        join(store, f"{long}1", f"{long}2")
        open_round(store, 3, "d1")
        deliver(store, 3, "d1", **{f"phase {index}": PhaseCost(1e308, 1e308) for index in range(50)})
    page = page_of(run_dir)
    values = values_of(page)
    assert not any(line.startswith("up") for line in page.splitlines())
    assert sum("device_info" in name and "other" in name for name in values) == 1
    phases = [name for name in values if "phase_seconds_total{device=" in name and '"d1"' in name]
    assert len(phases) == 3  # train, encode and other
    assert all(value < 1e12 for value in values.values())
    assert values["sparsyedge_devices_without_series"] == 1  # the second of the two long names


def test_only_the_devices_that_came_first_have_series_and_all_count(tmp_path: Path) -> None:
    write_run(tmp_path / "run", devices=30, rounds=2)
    values = values_of(page_of(tmp_path / "run", max_devices=10))
    shown = [name for name in values if name.startswith("sparsyedge_device_online")]
    assert shown == [f'sparsyedge_device_online{{device="pi-{index:05d}"}}' for index in range(10)]
    assert values["sparsyedge_devices_without_series"] == 20
    assert values['sparsyedge_updates_total{result="accepted"}'] == 60
    assert values['sparsyedge_phase_seconds_total{phase="train"}'] == 120.0


def test_a_folder_without_a_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run in .*: it has no run\.sqlite"):
        render(tmp_path)


# ---- what Prometheus and Grafana make of it --------------------------------------------------------------------------


def test_promtool_finds_no_fault_with_the_page(run_dir: Path, tmp_path: Path) -> None:
    with closing(LiveRecord(run_dir)) as live:
        live.note(activity_of("d1"))
        live.flush(present_of(round_number=2, online=1))
    with closing(Store.open(run_dir)) as store:
        store.note_device(HOSTILE, DeviceStatus(state="online", boot_id="x"))
    assert promtool("check", "metrics", folder=tmp_path, text=render(run_dir)[0]) == ""


def test_the_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    assert "8 rules found" in promtool("check", "rules", "alerts.yml", folder=tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=tmp_path)


def test_the_example_configuration_is_one_that_prometheus_takes(tmp_path: Path) -> None:
    for name in ("alerts.yml", "prometheus.yml"):
        shutil.copy(MONITORING / name, tmp_path)
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", folder=tmp_path)


@pytest.fixture
def names(tmp_path: Path) -> set[str]:
    """Every name of a sample that a page can have."""
    folder = tmp_path / "full"
    write_run(folder, devices=2, rounds=2)
    with closing(Store.open(folder)) as store:
        open_round(store, 4, "pi-00000")
        deliver(store, 4, "pi-00000")
        store.close_round(
            ClosedRound(
                round=4,
                model_id="c" * 64,
                seconds=4.0,
                global_sparsity=0.9,
                evaluation=Evaluation(0.5, 0.5),
                metrics={"test_rmse": 0.5},
            )
        )
    return {re.sub(r"\{.*", "", name) for name in values_of(page_of(folder))}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bsparsyedge_\w+", text))


def test_rules_dashboard_and_document_use_no_metric_that_does_not_exist(names: set[str]) -> None:
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries = [each["query"]["query"] for each in dashboard["templating"]["list"] if isinstance(each["query"], dict)]
    assert len(expressions) > 20
    assert names_in("\n".join([*expressions, *queries])) <= names
    assert names_in((MONITORING / "alerts.yml").read_text()) <= names


def test_the_document_lists_every_metric(names: set[str]) -> None:
    document = (MONITORING.parent / "how-to" / "monitoring.md").read_text()
    families = {re.sub(r"(duration_seconds)_(sum|count)$", r"\1", name) for name in names}
    assert names_in(document) == families


def test_prometheus_can_parse_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    rules = [
        {"record": f"panel_{panel['id']}_{number}", "expr": target["expr"].replace("$instance", "a")}
        for panel in dashboard["panels"]
        for number, target in enumerate(panel.get("targets", ()))
    ]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "panels.yml", folder=tmp_path)


@pytest.mark.mosquitto
def test_a_real_prometheus_follows_a_run_over_a_real_broker(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.start(rounds=2, cohort_size=2)
    devices = fleet.join("d1", "d2")
    tasks = [device.until_round(1) for device in devices]
    rules = MONITORING / "alerts.yml"
    with (
        serving(lambda: render(fleet.config.run_path)) as page_port,
        scraping(tmp_path / "prometheus", page_port=page_port, port=unused_port(), rules=rules) as prometheus,
    ):
        prometheus.wait_for('sparsyedge_devices{state="online"} == 2')
        assert prometheus.target()["health"] == "up", prometheus.target()["lastError"]
        for device, task in zip(devices, tasks, strict=True):
            assert isinstance(device.deliver(task), Accepted)
        prometheus.wait_for("sparsyedge_rounds_closed_total == 1")
        (found,) = prometheus.wait_for('sparsyedge_device_phase_seconds_total{device="d1",phase="train"}')
        assert (found["metric"]["job"], float(found["value"][1])) == ("sparsyedge", 1.0)
        for device in devices:
            assert isinstance(device.deliver(device.until_round(2)), Accepted)
        assert run.result().run.state == "finished"
        prometheus.wait_for('sparsyedge_run_state{state="finished"} == 1')
        assert prometheus.wait_for("sparsyedge_rounds_closed_total == 2")
        assert prometheus.ask("ALERTS") == []
