"""`bench device --suite`: what is chosen, what has no room, how processes end, and small suites for real."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sparsyedge.benchmarks.device.boards_known import known_rows, read_known
from sparsyedge.benchmarks.device.children import WorkloadEnded, run_child
from sparsyedge.benchmarks.device.measurement import Turn
from sparsyedge.benchmarks.device.room import available_mb, missing_room, need_of
from sparsyedge.benchmarks.device.soak import MOST_SAMPLES, SoakLog, SoakSample
from sparsyedge.benchmarks.device.suite import SUITES, chosen
from sparsyedge.benchmarks.device.suite_page import draw_suite, suite_page
from sparsyedge.benchmarks.device.suite_result import FORMAT, Row, SuiteResult, cost_of, read_suite
from sparsyedge.benchmarks.device.suite_tables import suite_comparison, suite_summary
from sparsyedge.edge import cli
from sparsyedge.edge.device.energy import NullMeter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind, PhaseCost

TINY = SUITES["smoke"][0]
QUICK = ["--minutes", "0", "--batches", "2", "--idle-s", "0", "--threads", "1"]


def a_turn(*, kind: Kind = "measured-board", throttled_before: bool = False) -> Turn:
    return Turn(
        graph="sparse",
        step_s=[1.0] * 20 + [1.5] * 20,
        samples=640,
        phases={"train": PhaseCost(50.0, None if kind == "none" else 200.0)},
        update_bytes=1,
        peak_rss_mb=300.0,
        start_c=50.0,
        peak_c=80.0,
        throttled=True,
        energy_source="hwmon",
        energy_kind=kind,
        energy_hz=10.0,
        idle_w=None if kind == "none" else 2.0,
        meter_overhead=0.01,
        warm_up_s=2.5,
        throttled_before=throttled_before,
        soak=[SoakSample(0.0, 0, 50.0, 0.0), SoakSample(10.0, 9, 80.0, 30.0), SoakSample(20.0, 15, 78.0, 80.0)],
        round_bytes={"lossless": 3_000_000, "bf16": 1_500_000, "float32": 44_000_000},
    )


def a_row(name: str, turn: Turn | None, reason: str = "") -> Row:
    workload = next(each for suite in SUITES.values() for each in suite if each.name == name)
    return Row(
        workload=name,
        network=workload.network.title,
        pixels=workload.network.pixels,
        train=workload.train,
        method=workload.method,
        sparsity=workload.sparsity,
        batch=16,
        outcome="measured" if turn else "skipped",
        reason=reason,
        need=need_of(workload, {}),
        available_mb=4000.0,
        cost=None if turn is None else cost_of(turn, idle_s=5.0),
        load=0.5,
    )


def a_result(*rows: Row, board: str = "Raspberry Pi 5") -> SuiteResult:
    return SuiteResult(
        format=FORMAT,
        suite="field",
        made_at="2026-01-01T00:00:00Z",
        machine={"board": board, "cpu": "Cortex-A76"},
        settings={"threads": 4},
        rows=list(rows),
        notes=[],
    )


def test_the_field_suite_has_the_networks_of_the_published_table_and_ours() -> None:
    names = {workload.name for workload in SUITES["field"]}
    assert {row.workload for row in known_rows()} <= names
    for sizes in ("resnet18-224", "resnet50-224", "mobilenet_v2-224", "vit_tiny-224", "resnet18-32", "vit_tiny-32"):
        assert {f"{sizes}-{kind}" for kind in ("dense", "last", "sparse50", "sparse90", "sparse95")} <= names


def test_workloads_are_chosen_by_patterns_in_the_suites_order() -> None:
    found = chosen("field", "vit_tiny-32-last, resnet18-32-sparse*")
    names = [workload.name for workload in found]
    assert names == ["resnet18-32-sparse50", "resnet18-32-sparse90", "resnet18-32-sparse95", "vit_tiny-32-last"]
    with pytest.raises(
        ConfigError, match="'alexnet', which matches no workload of suite field; there are: resnet18-32"
    ):
        chosen("field", "resnet18-*,alexnet")


def test_a_measured_need_goes_before_an_estimate() -> None:
    assert need_of(TINY, {}).kind == "estimated"
    need = need_of(TINY, {TINY.name: 1000.0})
    assert (need.kind, need.memory_mb > 1000.0) == ("measured", True)
    field = {workload.name: need_of(workload, {}).memory_mb for workload in SUITES["field"]}
    assert field["resnet50-224-dense"] > field["resnet18-224-dense"] > field["resnet18-32-dense"]


def test_the_estimates_are_above_every_peak_that_was_measured() -> None:
    peaks = read_known().needs.peak_rss_mb
    low = [name for name, peak in peaks.items() if need_of(chosen("field", name)[0], {}).memory_mb < peak]
    assert not low


def test_memory_is_what_the_kernel_and_the_container_leave(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:    3000000 kB\n")
    assert available_mb(proc=tmp_path, cgroup=tmp_path) == pytest.approx(3072.0)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500000000\n")
    assert available_mb(proc=tmp_path, cgroup=tmp_path) == pytest.approx(3072.0)
    (tmp_path / "memory.max").write_text("600000000\n")
    assert available_mb(proc=tmp_path, cgroup=tmp_path) == pytest.approx(100.0)
    reason = missing_room(need_of(TINY, {}), tmp_path, proc=tmp_path, cgroup=tmp_path)
    assert reason.startswith("no room in memory: it needs about ")
    assert reason.endswith("(estimated), 100 MB are available")
    assert available_mb(proc=tmp_path / "none", cgroup=tmp_path / "none") is None


def test_a_full_disk_is_a_reason_too(tmp_path: Path) -> None:
    need = msgspec.structs.replace(need_of(TINY, {}), memory_mb=0.0, disk_mb=1e12)
    assert missing_room(need, tmp_path).startswith("no room on disk: it needs about 1000000000000 MB in ")


def test_a_process_that_the_kernel_kills_is_told_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed_like_this.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (tmp_path / "fails_like_this.py").write_text("import sys; sys.exit('the reason')")
    (tmp_path / "waits_like_this.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkloadEnded, match=r"^it was killed \(SIGKILL\), as the kernel does when memory runs out$"):
        run_child("killed_like_this", [], limit_s=60, what="it")
    with pytest.raises(WorkloadEnded, match=r"^it ended with code 1: the reason$"):
        run_child("fails_like_this", [], limit_s=60, what="it")
    with pytest.raises(WorkloadEnded, match=r"^no time: it took more than the 1 s allowed, and was ended"):
        run_child("waits_like_this", [], limit_s=1, what="it")


def test_power_and_heat_come_out_of_the_soak() -> None:
    cost = cost_of(a_turn(), idle_s=5.0)
    assert cost.power.watts is not None
    assert (cost.power.watts.mean, cost.power.watts.low, cost.power.watts.high) == (4.0, 3.0, 5.0)
    assert (cost.power.stabilisation_s, cost.power.sampling_hz) == (2.5, 10.0)
    assert cost.sample_j == pytest.approx(200 / 640)
    assert cost.sample_j_above_idle == pytest.approx(100 / 640)
    assert cost.batch_s.mean == pytest.approx(1.25)
    assert (cost.soak.end_c, cost.soak.slower_at_end) == (78.0, 1.5)
    assert cost_of(a_turn(kind="none"), idle_s=5.0).sample_j is None


def test_a_days_log_stays_small() -> None:
    now_s = 0.0
    log = SoakLog(NullMeter(), clock=lambda: now_s)
    for step in range(2_600):
        now_s += 8.64
        log.look(step)
    log.look(2_600, last=True)
    assert len(log.samples) <= MOST_SAMPLES
    assert (log.samples[0].steps, log.samples[-1].steps) == (0, 2_600)


def test_the_tables_show_what_ran_what_did_not_and_whose_figures_they_are() -> None:
    result = a_result(
        a_row("resnet18-224-dense", a_turn(throttled_before=True)),
        a_row("resnet50-224-dense", None, "no room in memory: it needs about 3000 MB"),
        a_row("resnet18-32-dense", a_turn(kind="modelled")),
    )
    summary = suite_summary(result)
    assert "resnet50-224-dense: skipped: no room in memory: it needs about 3000 MB" in summary
    assert "before" in summary
    assert "modelled" in summary
    text = suite_comparison([result, msgspec.structs.replace(result, settings={"threads": 1})])
    assert "note: threads differs: 4, 1" in text
    pis = [
        line.split() for line in text.splitlines() if " published " in line and line.startswith("resnet18-224-dense")
    ]
    assert [line[1:5] for line in pis] == [["Pi", "4", "published", "10.92"], ["Pi", "5", "published", "5.84"]]
    assert "published: jafermarq/federated-embedded-vision" in text
    picture = draw_suite([result])
    assert picture is not None
    page = suite_page([result], picture)
    assert "data:image/png;base64" in page
    assert "published" in page
    assert draw_suite([a_result(a_row("resnet50-224-dense", None))]) is None


def test_files_that_are_no_suite_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite, other = tmp_path / "suite.json", tmp_path / "other.json"
    suite.write_bytes(msgspec.json.encode(a_result(a_row("resnet18-224-dense", a_turn()))))
    other.write_text('{"format": "sparsyedge-bench-device-1"}')
    assert cli.main(["bench", "compare", str(suite), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "compare.html").is_file()
    assert cli.main(["bench", "compare", str(suite), str(other)]) == 2
    assert "is not a result of `sparsyedge bench device --suite`" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="cannot read"):
        read_suite(tmp_path / "no.json")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--suite", "feild"], "invalid choice: 'feild'"),
        (["--suite", "smoke", "--only", "resnet99"], "matches no workload of suite smoke"),
        (["--suite", "smoke", "--only", ","], "names no workload"),
        (["--suite", "smoke", "--minutes", "40"], "above --limit-minutes 30"),
        (["--suite", "smoke", "--batches", "0"], "at least 1 is needed"),
        (["--suite", "smoke", "--meter", "ina"], "energy meter 'ina' is unknown"),
        (["--only", "resnet18-32-dense"], "--only is for suites; add --suite field|smoke"),
        (["--minutes", "0"], "0 is for --suite alone"),
        (["--suite", "smoke", "--minutes", "-1"], "allowed are more than 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["bench", "device", *options])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_suite_is_prepared_here_and_measured_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared, out = tmp_path / "prepared", tmp_path / "out"
    command = ["bench", "device", "--suite", "smoke", *QUICK, "--meter", "cpu-model"]
    assert cli.main([*command, "--only", "*-dense,*-sparse9*", "--prepare", str(prepared)]) == 0
    assert {path.name for path in prepared.iterdir()} == {"resnet18w4-32-dense", "resnet18w4-32-sparsyfed"}
    capsys.readouterr()
    assert cli.main([*command, "--artifacts", str(prepared), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["workload"]: row for row in document["rows"]}
    assert rows["resnet18w4-32-last"]["outcome"] == "skipped"
    assert "make them elsewhere with `--prepare DIR`" in rows["resnet18w4-32-last"]["reason"]
    dense, sparse = rows["resnet18w4-32-dense"]["cost"], rows["resnet18w4-32-sparse95"]["cost"]
    assert dense["batch_s"]["count"] == 2
    assert (dense["power"]["method"], dense["power"]["source"]) == ("modelled", "cpu-model")
    assert dense["sample_j_above_idle"] > 0
    assert dense["power"]["stabilisation_s"] > 0
    assert 0 < sparse["round_bytes"]["bf16"] < dense["round_bytes"]["bf16"] < dense["round_bytes"]["float32"]
    assert {path.name for path in out.iterdir()} == {"suite.json", "suite.html", "suite.png"}

    # What was measured is kept, what was skipped is tried again.
    changed = read_suite(out / "suite.json")
    assert cli.main([*command, "--artifacts", str(prepared), "--out", str(out), "--only", "*-sparse95"]) == 0
    again = {row.workload: row for row in read_suite(out / "suite.json").rows}
    assert again["resnet18w4-32-sparse95"] == next(row for row in changed.rows if row.workload.endswith("sparse95"))
    capsys.readouterr()
    assert cli.main([*command, "--batches", "3", "--artifacts", str(prepared), "--out", str(out)]) == 2
    assert "was made with other settings" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_workload_without_room_or_time_costs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsyedge.benchmarks.device import suite_run

    prepared = tmp_path / "prepared"
    command = ["bench", "device", "--suite", "smoke", *QUICK, "--meter", "none"]
    assert cli.main([*command, "--only", "*-sparse*", "--prepare", str(prepared)]) == 0
    monkeypatch.setattr(suite_run, "measured_needs", lambda: {"resnet18w4-32-sparse50": 1e9})
    assert cli.main([*command, "--only", "*-sparse[59]0", "--artifacts", str(prepared)]) == 0
    text = capsys.readouterr().out
    assert "resnet18w4-32-sparse50: skipped: no room in memory: it needs about 1150000000 MB (measured)" in text
    assert "no joules: this board has no power sensor" in text
    slow = ["--batches", "1000000", "--limit-minutes", "0.1"]
    assert cli.main([*command, *slow, "--only", "*-sparse90", "--artifacts", str(prepared)]) == 2
    assert "ended: the process that trains ended with code 2: no time: a batch takes about" in capsys.readouterr().out
    assert [path.name for path in prepared.iterdir()] == ["resnet18w4-32-sparsyfed"]
