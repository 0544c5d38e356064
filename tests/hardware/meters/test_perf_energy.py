"""The files are made as the kernel describes them; the counters are the kernel's own, where it opens them."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from sparsyedge.hardware.meters.perf_energy import PerfEnergyMeter, _processors, open_event

SOFTWARE, PROCESSOR_CLOCK = 1, 0
"""The kernel's clock of a processor in nanoseconds: the only counter that every machine has."""


def add_source(root: Path, *, kind: int = SOFTWARE, event: str = "event=0x00", unit: str = "Joules") -> Path:
    source = root / "bus" / "event_source" / "devices" / "power"
    files = {
        "type": str(kind),
        "cpumask": str(min(os.sched_getaffinity(0))),
        "format/event": "config:0-7",
        "events/energy-pkg": event,
        "events/energy-pkg.scale": "1e-9",
        "events/energy-pkg.unit": unit,
    }
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"{content}\n")
    return source


def open_counters() -> int:
    links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return sum("perf_event" in link for link in links)


@pytest.fixture
def opened() -> None:
    try:
        os.close(open_event(SOFTWARE, PROCESSOR_CLOCK, min(os.sched_getaffinity(0))))
    except OSError as error:
        pytest.skip(f"this kernel opens no counter of all processes: {error}")


def test_counts_of_the_kernel_times_the_scale_are_joules(opened: None, tmp_path: Path) -> None:
    """With a scale of 1e-9, the clock counts one joule a second."""
    add_source(tmp_path)
    meter = PerfEnergyMeter.probe(tmp_path)
    assert meter is not None
    started_s = time.monotonic()
    meter.start()
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 0.2:
        time.sleep(0.01)
    least_s = time.monotonic() - begun_s
    joules = meter.read_joules()
    assert 0.5 * least_s <= joules <= 1.5 * (time.monotonic() - started_s)
    assert (meter.name, meter.kind, meter.lost_s) == ("perf", "measured-rails", 0.0)


def test_a_meter_gives_its_counters_back(opened: None, tmp_path: Path) -> None:
    add_source(tmp_path)
    meter = PerfEnergyMeter.probe(tmp_path)
    assert open_counters() == 1
    assert meter is not None
    del meter
    assert open_counters() == 0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"unit": "Watts"}, "only a share of Joules"),
        ({"event": "event=0x02,umask=0x1"}, "described in a way that is not understood"),
        ({"kind": 9999}, "perf_event_open"),
    ],
)
def test_what_is_no_counter_of_joules_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, str | int], complaint: str
) -> None:
    add_source(tmp_path, **wrong)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        assert PerfEnergyMeter.probe(tmp_path) is None
    assert complaint in caplog.text


def test_a_machine_without_these_events_has_no_such_meter(tmp_path: Path) -> None:
    assert PerfEnergyMeter.probe(tmp_path) is None


def test_processors_of_packages_are_listed_as_the_kernel_writes_them() -> None:
    assert _processors("0\n") == [0]
    assert _processors("0,8\n") == [0, 8]
    assert _processors("0-2,9\n") == [0, 1, 2, 9]
    assert len(_processors("0-4000000000\n")) == 64


def test_the_energy_of_this_machine_grows() -> None:
    meter = PerfEnergyMeter.probe(Path("/sys"))
    if meter is None:
        pytest.skip("this machine has no power events, or does not open them")
    meter.start()
    deadline_s = time.monotonic() + 60
    while meter.read_joules() == 0 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert meter.read_joules() > 0
