"""Joules from processor time and watts that were measured earlier, and files that are no such measurement."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from fixtures.calibrations import calibration, step

from sparsyedge.edge.config import MetersConfig
from sparsyedge.edge.device.energy import MeterSettings, measure_idle, open_meter
from sparsyedge.edge.errors import ConfigError
from sparsyedge.hardware.meters.calibration import Calibration, PowerCurve, read_calibration
from sparsyedge.hardware.meters.cpu_model import CpuModelMeter


def keep(content: Calibration | bytes, folder: Path) -> Path:
    path = folder / "calibration.json"
    path.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    return path


def settings(path: Path) -> MeterSettings:
    return MeterSettings("pi-03", MetersConfig(calibration=str(path)))


def four_cores() -> PowerCurve:
    idle = step("idle", 0, 2.0, busy_cores=0.3)
    return PowerCurve(
        calibration(idle, step("compute", 1, 3.0, 0.9), step("memory", 1, 4.0, 1.1), step("compute", 4, 6.5), cores=4)
    )


def test_watts_lie_on_lines_between_the_means_of_the_steps() -> None:
    curve = four_cores()
    assert [curve.watts(cores) for cores in (0, 0.5, 1, 2.5, 4)] == pytest.approx([2.0, 2.75, 3.5, 5.0, 6.5])


def test_no_board_is_busier_than_its_cores_or_draws_less_than_nothing() -> None:
    curve = four_cores()
    assert curve.watts(100.0) == curve.watts(4.0)
    assert curve.watts(-1.0) == curve.watts(0.0)
    falling = PowerCurve(calibration(step("idle", 0, 2.0), step("compute", 1, 0.5), cores=4))
    assert falling.watts(4.0) == 0.0


def test_a_calibrated_model_counts_idle_power_and_busy_cores() -> None:
    now, cpu = [0.0], [50.0]
    meter = CpuModelMeter(calibration=calibration(cores=4), cpu_seconds=lambda: cpu[0], clock=lambda: now[0])
    assert (meter.name, meter.kind) == ("cpu-model from shelly", "calibrated")
    meter.start()
    now[0] += 10.0
    assert meter.read_joules() == pytest.approx(20.0)
    now[0], cpu[0] = now[0] + 10.0, cpu[0] + 10.0
    assert meter.read_joules() == pytest.approx(20.0 + 30.0)
    meter.stop()
    now[0] += 100.0
    assert meter.read_joules() == pytest.approx(50.0)


def test_a_device_with_a_calibration_takes_its_joules_from_it(tmp_path: Path) -> None:
    meter = open_meter("cpu-model", settings=settings(keep(calibration(), tmp_path)))
    meter.stop()
    assert (meter.name, meter.kind) == ("cpu-model from shelly", "calibrated")


def test_idle_power_of_a_calibrated_model_is_the_measured_one() -> None:
    meter = CpuModelMeter(calibration=calibration(cores=1000), cpu_seconds=lambda: 1.0)
    meter.start()
    assert measure_idle(meter, 0.2) == pytest.approx(2.0, rel=0.2)


def test_auto_takes_no_model_even_if_it_is_calibrated(tmp_path: Path) -> None:
    meter = open_meter(root=tmp_path, settings=settings(keep(calibration(), tmp_path)))
    meter.stop()
    assert meter.kind not in ("modelled", "calibrated")


def test_how_far_loads_differ_is_part_of_a_calibration() -> None:
    assert calibration().spread == pytest.approx(0.5 / 3.0)
    assert calibration().idle_w == 2.0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a calibration"),
        (b"\xff\xfe", "is not a calibration"),
        (b"[" * 300_000, "is not a calibration"),
        (msgspec.json.encode({**msgspec.to_builtins(calibration()), "format": 2}), "is not a calibration"),
        (msgspec.json.encode({**msgspec.to_builtins(calibration()), "kind": "modelled"}), "is not a calibration"),
        (calibration(step("idle", 0, 2.0), step("compute", 1, -1.0)), "is not a calibration"),
        (calibration(step("idle", 0, 2.0), step("idle", 0, 2.0)), "needs one idle step"),
        (calibration(step("compute", 1, 2.0), step("memory", 1, 2.0)), "needs one idle step"),
        (calibration(step("idle", 0, 2.0), step("compute", 999, 3.0)), "a step with 999 of"),
        (calibration(step("idle", 0, 2.0), step("compute", 1, 3.0, 0.0)), "no busier than one with fewer"),
        (calibration(board="Raspberry Pi 4 Model B"), "is of a Raspberry Pi 4 Model B with"),
        (calibration(cores=len(os.sched_getaffinity(0)) + 1), "cores, and this is a"),
    ],
)
def test_what_is_no_calibration_of_this_board_is_refused_with_the_way_to_make_one(
    tmp_path: Path, content: Calibration | bytes, complaint: str
) -> None:
    path = keep(content, tmp_path)
    with pytest.raises(ConfigError, match=f"{complaint}.*make one with `sparsyedge bench meter --out FILE`"):
        open_meter("cpu-model", settings=settings(path))


def test_a_missing_calibration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the calibration .*No such file"):
        read_calibration(tmp_path / "nothing.json")
