from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from sparsyedge.benchmarks.device import command
from sparsyedge.benchmarks.device import compare_command as compare
from sparsyedge.benchmarks.device.board import fingerprint, read_throttling
from sparsyedge.benchmarks.device.command import main
from sparsyedge.benchmarks.device.measurement import Turn
from sparsyedge.benchmarks.device.plots import draw, page
from sparsyedge.benchmarks.device.result import DeviceResult, read_result, summarise
from sparsyedge.benchmarks.device.tables import comparison, energy_line, summary
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind, PhaseCost

PNG = b"\x89PNG\r\n\x1a\n"


def a_turn(*, joules: float | None = 40.0, idle_w: float | None = 2.0, kind: Kind = "measured-board") -> Turn:
    return Turn(
        graph="sparse",
        step_s=[0.9, 1.0, 1.1, 1.0],
        samples=40,
        phases={"train": PhaseCost(4.0, joules), "encode": PhaseCost(1.0, None if joules is None else 3.0)},
        update_bytes=1_500_000,
        peak_rss_mb=120.0,
        start_c=50.0,
        peak_c=61.0,
        throttled=False,
        energy_source="hwmon" if kind != "none" else "none",
        energy_kind=kind,
        energy_hz=118.0,
        idle_w=idle_w,
        meter_overhead=0.02,
    )


def a_result(name: str = "Raspberry Pi 5", **turn: object) -> DeviceResult:
    made = a_turn(**turn)  # type: ignore[arg-type]
    model = summarise([made, made], sparsity=0.95, round_samples=400)
    return DeviceResult(
        format="sparsyedge-bench-device-1",
        made_at="2026-01-01T00:00:00Z",
        machine={"board": name, "cpu": "Cortex-A76"},
        settings={"threads": 4, "batch": 10},
        energy_source=made.energy_source,
        energy_kind=made.energy_kind,
        energy_hz=made.energy_hz,
        idle_w=made.idle_w,
        meter_overhead=made.meter_overhead,
        models={"dense": model, "sparse": model},
        notes=[],
    )


def test_joules_per_sample_and_round_are_worked_out_with_and_without_idle_power() -> None:
    model = summarise([a_turn(), a_turn()], sparsity=0.95, round_samples=400)
    assert (model.steps, model.step_ms) == (8, 1000.0)
    assert model.samples_per_s == pytest.approx(10.0)
    assert model.sample_j == pytest.approx(1.0)
    assert model.sample_j_above_idle == pytest.approx(32.0 / 40)
    assert model.round_s == pytest.approx(41.0)
    assert model.round_j == pytest.approx(400 + 3)
    assert model.round_j_above_idle == pytest.approx(320 + 1)


def test_a_board_without_a_sensor_has_no_joules_and_is_told_why() -> None:
    result = a_result(joules=None, idle_w=None, kind="none")
    assert result.models["dense"].sample_j is None
    assert "no joules: this board has no power sensor" in summary(result)


def test_a_turn_that_lost_its_joules_leaves_the_model_without() -> None:
    model = summarise([a_turn(), a_turn(joules=None)], sparsity=0.95, round_samples=400)
    assert (model.sample_j, model.round_j) == (None, None)


def test_modelled_joules_are_called_so_in_every_row() -> None:
    lines = [line for line in summary(a_result(kind="modelled", idle_w=0.0)).splitlines() if line.startswith("J per")]
    assert len(lines) == 4
    assert all("modelled" in line for line in lines)
    assert "sampling took 2.0 % of a core" in energy_line(a_result())


def test_boards_stand_beside_each_other_and_differences_are_noted() -> None:
    other = msgspec.structs.replace(a_result("Jetson", kind="modelled"), settings={"threads": 6, "batch": 10})
    text = comparison([a_result(), other])
    assert "Raspberry Pi 5 dense" in text
    assert "Jetson sparse" in text
    assert "1 modelled" in text
    assert "note: threads differs: 4, 6" in text


def test_the_picture_and_the_page_are_made_for_one_board_and_for_several() -> None:
    for results in ([a_result()], [a_result(), a_result("Jetson", joules=None, idle_w=None, kind="none")]):
        picture = draw(results)
        assert picture is not None
        assert picture.startswith(PNG)
        assert "data:image/png;base64" in page(results, picture)
    assert "<img" not in page([a_result()], None)


def test_a_result_is_read_back_and_anything_else_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "device.json"
    path.write_bytes(msgspec.json.encode(a_result()))
    assert read_result(path) == a_result()
    assert compare.main([str(path), str(path), "--out", str(tmp_path / "out")]) == 0
    assert "Raspberry Pi 5 sparse" in capsys.readouterr().out
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(PNG)
    with pytest.raises(ConfigError, match="cannot read"):
        read_result(tmp_path / "no.json")
    path.write_text("{}")
    with pytest.raises(ConfigError, match="is not a result of"):
        read_result(path)


def test_a_board_says_who_it_is_and_whether_it_was_throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "sys/firmware/devicetree/base/model"
    model.parent.mkdir(parents=True)
    model.write_text("Raspberry Pi 4 Model B Rev 1.5\0")
    assert fingerprint(root=tmp_path / "sys")["board"] == "Raspberry Pi 4 Model B Rev 1.5"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command_file = tmp_path / "vcgencmd"
    for answer, expected in (("throttled=0x0", False), ("throttled=0x50000", True), ("rubbish", None)):
        command_file.write_text(f"#!/bin/sh\necho {answer}\n")
        command_file.chmod(0o755)
        assert read_throttling() is expected
    command_file.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_throttling(root=tmp_path) is None
    count = tmp_path / "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    count.parent.mkdir(parents=True)
    count.write_text("3\n")
    assert read_throttling(root=tmp_path) is True


def test_an_unknown_meter_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="energy meter 'ina' is unknown; known are auto, none, "):
        main(["--meter", "ina"])


@pytest.mark.heavy
def test_a_whole_run_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--minutes", "0.02", "--meter", "cpu-model", "--width", "8", "--batch", "4", "--threads", "1"]
    assert main([*options, "--out", str(tmp_path), "--json", "--idle-s", "0"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["energy_kind"] == "modelled"
    assert document["machine"]["cores"] >= 1
    for model in document["models"].values():
        assert model["steps"] >= 1
        assert model["sample_j"] > 0
    assert document["models"]["sparse"]["update_bytes"] < document["models"]["dense"]["update_bytes"]
    assert {path.name for path in tmp_path.iterdir()} == {"device.json", "device.html", "device.png"}


def test_a_board_that_cannot_export_is_told_what_to_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sparsyedge.export.build", None)
    arguments = command.make_parser().parse_args(["--meter", "none"])
    with pytest.raises(ConfigError, match="copy DIR here and add `--artifacts DIR`"):
        command._artifacts(arguments, tmp_path)
