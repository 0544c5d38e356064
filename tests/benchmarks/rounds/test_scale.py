"""From measured rounds to many devices: lines, limits and layouts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sparsyedge.benchmarks.rounds import scale_command
from sparsyedge.benchmarks.rounds.figures import Document, Figures, Options, PeerFigures, fit_of, point_of
from sparsyedge.benchmarks.rounds.scale import Box, costs_of, layout_of, limits_of
from sparsyedge.edge.errors import ConfigError

BOX = Box(round_s=600, cores=2, memory_gb=16, fsyncs_per_s=500, connections=100_000)


def _figures(devices: int, *, updates_per_s: float = 100.0, lost: int = 0) -> Figures:
    """A coordinator that needs 5 ms and 2 kB per device, and names of 15 bytes in its task."""
    return Figures(
        devices=devices,
        accepted=devices - lost,
        lost=lost,
        counted_twice=0,
        answered_again=devices,
        seconds=devices / updates_per_s,
        updates_per_s=updates_per_s,
        ms_per_update=1000 / updates_per_s,
        mb_per_s=1.0,
        update_bytes=100_000.0,
        chunks_per_update=1.0,
        p50_s=1.0,
        p99_s=2.0,
        close_s=1.0,
        coordinator_cpu_s_per_update=0.005,
        broker_cpu_s_per_update=0.0005,
        devices_cpu_s_per_update=0.0005,
        coordinator_start_mb=250.0,
        coordinator_idle_mb=200.0,
        coordinator_joined_mb=200.0 + 0.001 * devices,
        coordinator_round_mb=210.0 + 0.002 * devices,
        coordinator_peak_mb=210.0 + 0.002 * devices,
        coordinator_private_mb=150.0 + 0.0005 * devices,
        worker_mb=(),
        growth_models=1.0,
        first_ms=100.0,
        later_ms_per_update=3.0,
        growth_round_models=0.8,
        growth_once_models=None,
        model_mb=2.8,
        broker_mb=10.0 + 0.004 * devices,
        messages_up=5.0,
        messages_down=6.0,
        bytes_up=103_000.0,
        bytes_down=4_000.0 + 30 * devices,
        offers=3.0,
        model_bytes=50_000,
        task_bytes=800 + 15 * devices,
        join_s=1.0,
        lost_connections=0,
        fsyncs_per_update=0.5,
    )


def _document(*sizes: int, width: int = 16) -> Document:
    peer = PeerFigures(
        subscriber="lean", seconds=1, updates_per_s=1000, mb_per_s=500, broker_cpu_s_per_update=0.0001, broker_mb=20
    )
    points = tuple(point_of([_figures(size)], [peer]) for size in sizes)
    options = Options(width=width, codec="bf16", rounds=2, variants=8, repeat=1, peer="mosquitto")
    return Document(machine={}, options=options, points=points, fit=fit_of(points))


def test_lines_go_through_what_was_measured_and_beyond() -> None:
    costs = costs_of([_document(100, 1000), _document(10_000)])
    assert costs.sizes == (100, 1000, 10_000)
    assert costs.task_bytes(1000) == 800 + 15 * 1000
    assert costs.task_bytes(10**6) == pytest.approx(800 + 15e6)
    assert costs.coordinator_cpu_s(10**6) == pytest.approx(0.005)
    assert costs.coordinator_mb(10**6) == pytest.approx(210 + 2000)
    assert costs.broker_mb_per_s == 500


def test_what_falls_with_the_number_of_devices_stays_where_it_is_beyond() -> None:
    points = [
        point_of([msgspec.structs.replace(_figures(size), coordinator_cpu_s_per_update=cost)], [])
        for size, cost in ((100, 0.006), (1000, 0.005), (10_000, 0.004))
    ]
    costs = costs_of([msgspec.structs.replace(_document(100), points=tuple(points))])
    assert (costs.coordinator_cpu_s(10_000), costs.coordinator_cpu_s(10**6)) == (0.004, 0.005)


def test_the_first_limit_is_the_one_that_the_arithmetic_names() -> None:
    limits = limits_of(costs_of([_document(100, 10_000)]), BOX)
    at = {limit.what: limit.devices for limit in limits}
    assert [limit.devices for limit in limits] == sorted(at.values())
    (cpu,) = (n for what, n in at.items() if "coordinator's processor" in what)
    assert cpu == pytest.approx(600 * 2 / 0.005, rel=0.001)
    (cohort,) = (n for what, n in at.items() if "largest cohort" in what)
    assert cohort == 100_000
    (tasks,) = (n for what, n in at.items() if what.startswith("tasks"))
    assert 2 * tasks * (800 + 15 * tasks) == pytest.approx(600 * 500e6, rel=0.001)
    (offers,) = (n for what, n in at.items() if what.startswith("offers"))
    # A hundred offers a second cost next to nothing; they count again where each device asks every ten minutes.
    assert offers == pytest.approx(2 * 600.0 * 3 / 0.005, rel=0.001)


def test_a_tree_sends_each_device_the_names_of_its_region_only() -> None:
    costs = costs_of([_document(100, 1000)])
    layout = layout_of(costs, BOX, 10**6)
    assert (layout.regions, layout.levels) == (1000, 2)
    assert layout.shards == round(10**6 * 0.005 / 1200 + 0.5)
    assert layout.task_bytes_flat / layout.task_bytes_tree == pytest.approx(15_000_800 / 15_800)
    assert layout.root_bytes == 1000 * 50_000


def test_medians_keep_the_worst_of_what_must_be_zero() -> None:
    runs = [_figures(100, updates_per_s=rate, lost=lost) for rate, lost in ((90.0, 0), (110.0, 1), (100.0, 0))]
    point = point_of(runs, [])
    assert point.figures.updates_per_s == 100
    assert (point.figures.lost, point.figures.accepted) == (1, 99)
    assert (point.updates_per_s_spread.low, point.updates_per_s_spread.high) == (90, 110)
    assert point.peer_ratio is None


def test_bytes_per_device_are_the_slope_of_the_peaks() -> None:
    fit = _document(100, 1000, 10_000).fit
    assert fit is not None
    assert (fit.bytes_per_device, fit.joined_bytes_per_device, fit.private_bytes_per_device) == (2000, 1000, 500)
    assert fit.slowest_over_fastest == 1


def test_the_command_prints_markdown_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rounds.json"
    path.write_bytes(msgspec.json.encode(_document(100, 1000)))
    assert scale_command.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "| 1,000,000 (line) |" in printed
    assert "| breaks at devices | what |" in printed
    assert scale_command.main([str(path), "--devices", "1e5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"]["devices"] == 100_000


def test_documents_that_cannot_be_used_are_one_sentence_each(tmp_path: Path) -> None:
    wrong, one, other = tmp_path / "wrong.json", tmp_path / "one.json", tmp_path / "other.json"
    wrong.write_text('{"devices": 200}')
    one.write_bytes(msgspec.json.encode(_document(100)))
    other.write_bytes(msgspec.json.encode(_document(1000, width=64)))
    with pytest.raises(ConfigError, match="cannot read"):
        scale_command.main([str(tmp_path / "absent.json")])
    with pytest.raises(ConfigError, match="no document of `sparsyedge bench rounds --json`"):
        scale_command.main([str(wrong)])
    with pytest.raises(ConfigError, match=r"a line needs two sizes, and the documents have \[100\]"):
        scale_command.main([str(one)])
    with pytest.raises(ConfigError, match="measured different things"):
        scale_command.main([str(one), str(other)])
