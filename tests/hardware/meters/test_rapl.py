from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sparsyedge.hardware.meters.rapl import RaplMeter

RANGE_UJ = 262_143_328_850


def add_zone(root: Path, zone: str, name: str, energy_uj: int) -> Path:
    folder = root / "class" / "powercap" / zone
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


def opened(root: Path) -> RaplMeter:
    meter = RaplMeter.probe(root)
    assert meter is not None
    meter.start()
    return meter


def test_joules_count_from_the_start(tmp_path: Path) -> None:
    counter = add_zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    meter = opened(tmp_path)
    assert meter.read_joules() == 0.0
    counter.write_text("7500000\n")
    assert meter.read_joules() == 2.5
    assert meter.read_joules() == 2.5
    assert (meter.name, meter.kind) == ("rapl", "measured-rails")


def test_packages_are_summed_without_their_parts_and_without_the_platform(tmp_path: Path) -> None:
    counters = [
        add_zone(tmp_path, "intel-rapl:0", "package-0", 0),
        add_zone(tmp_path, "intel-rapl:0:0", "core", 0),
        add_zone(tmp_path, "intel-rapl:1", "package-1", 0),
        add_zone(tmp_path, "intel-rapl:2", "psys", 0),
        add_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0),
    ]
    meter = opened(tmp_path)
    for counter in counters:
        counter.write_text("1000000")
    assert meter.read_joules() == 2.0


def test_a_counter_that_wraps_goes_on_counting(tmp_path: Path) -> None:
    counter = add_zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    meter = opened(tmp_path)
    counter.write_text("2000000")
    assert meter.read_joules() == 3.0


def test_energy_between_stop_and_start_is_not_counted(tmp_path: Path) -> None:
    counter = add_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = opened(tmp_path)
    counter.write_text("1000000")
    meter.stop()
    counter.write_text("9000000")
    assert meter.read_joules() == 1.0
    meter.start()
    counter.write_text("9500000")
    assert meter.read_joules() == 1.5


def test_a_machine_without_rapl_has_no_such_meter(tmp_path: Path) -> None:
    assert RaplMeter.probe(tmp_path) is None


def test_a_counter_that_cannot_be_read_means_no_meter(tmp_path: Path) -> None:
    counter = add_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    counter.unlink()
    counter.mkdir()  # root may read any file, so a folder stands in for a file without permission
    assert RaplMeter.probe(tmp_path) is None


def test_a_counter_that_vanishes_keeps_the_total_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counter = add_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = opened(tmp_path)
    counter.write_text("4000000")
    assert meter.read_joules() == 4.0
    counter.unlink()
    with caplog.at_level(logging.WARNING):
        assert [meter.read_joules() for _ in range(3)] == [4.0] * 3
    assert len(caplog.records) == 1
