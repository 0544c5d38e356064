from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec
import pytest

from sparsyedge.edge.device.energy import (
    EnergyMeter,
    NullMeter,
    PhaseRecorder,
    above_idle,
    joules_text,
    measure_idle,
    meter_text,
    open_meter,
    peak_rss_mb,
)
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.phase_costs import Kind, PhaseCost


class FakeMeter(NullMeter):
    """Joules that a test sets by hand."""

    name = "fake"
    kind: Kind = "measured-rails"

    def __init__(self) -> None:
        self.joules = 0.0
        self.lost_s = 0.0
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def read_joules(self) -> float:
        return self.joules


class AbsentMeter(FakeMeter):
    name = "absent"

    @classmethod
    def probe(cls, root: Path) -> None:
        return None


class ModelMeter(FakeMeter):
    name = "model"
    kind: Kind = "modelled"


class RaisingMeter(FakeMeter):
    name = "raising"

    @classmethod
    def probe(cls, root: Path) -> None:
        raise RuntimeError("sensor on fire")


class KindlessMeter:
    name = "kindless"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def install(monkeypatch: pytest.MonkeyPatch, **meters: type | str) -> None:
    """Make these the only entry points of the group; a string is the address of something to import."""
    module = ModuleType("fake_meters")
    entries = []
    for name, meter in meters.items():
        address = meter if isinstance(meter, str) else f"fake_meters:{name}"
        setattr(module, name, meter)
        entries.append(metadata.EntryPoint(name, address, "sparsyedge.meters"))

    def entry_points(*, group: str) -> Iterator[metadata.EntryPoint]:
        return (entry for entry in entries if entry.group == group)

    monkeypatch.setitem(sys.modules, "fake_meters", module)
    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_each_phase_is_charged_with_its_own_seconds_and_joules() -> None:
    meter, clock = FakeMeter(), Clock()
    recorder = PhaseRecorder(meter, clock=clock)
    with recorder.phase("download"):
        clock.now_s += 2
        meter.joules += 3
    clock.now_s += 50
    meter.joules += 50
    with recorder.phase("train"):
        clock.now_s += 4
        meter.joules += 20
    assert recorder.snapshot() == {"download": PhaseCost(2.0, 3.0), "train": PhaseCost(4.0, 20.0)}


def test_a_phase_entered_twice_adds_up() -> None:
    meter, clock = FakeMeter(), Clock()
    recorder = PhaseRecorder(meter, clock=clock)
    for _ in range(2):
        with recorder.phase("upload"):
            clock.now_s += 1.5
            meter.joules += 0.5
    assert recorder.snapshot() == {"upload": PhaseCost(3.0, 1.0)}


def test_joules_are_unknown_and_not_zero_without_a_meter() -> None:
    recorder = PhaseRecorder(NullMeter())
    for _ in range(2):
        with recorder.phase("train"):
            pass
    assert recorder.snapshot()["train"].joules is None


def test_a_phase_that_fails_is_charged_all_the_same() -> None:
    clock = Clock()
    recorder = PhaseRecorder(FakeMeter(), clock=clock)

    def fail() -> None:
        clock.now_s += 7
        raise KeyError

    with pytest.raises(KeyError), recorder.phase("encode"):
        fail()
    assert recorder.snapshot()["encode"].seconds == 7
    with recorder.phase("encode"):
        clock.now_s += 1
    assert recorder.snapshot()["encode"].seconds == 8


def test_a_phase_inside_another_is_refused() -> None:
    recorder = PhaseRecorder(FakeMeter())
    with recorder.phase("train"), pytest.raises(RuntimeError, match="prune begins inside phase train"):
        recorder.phase("prune").__enter__()


def test_reset_forgets_and_leaves_earlier_snapshots_alone() -> None:
    recorder = PhaseRecorder(FakeMeter())
    with recorder.phase("prune"):
        pass
    before = recorder.snapshot()
    recorder.reset()
    assert recorder.snapshot() == {}
    assert list(before) == ["prune"]


def test_costs_travel_as_json_and_negative_ones_are_refused() -> None:
    cost = PhaseCost(1.5, None)
    assert msgspec.json.decode(msgspec.json.encode(cost), type=PhaseCost) == cost
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"seconds": 1.0, "joules": -2.0}', type=PhaseCost)


def test_auto_prefers_a_measurement_to_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, model=ModelMeter, fake=FakeMeter)
    assert open_meter().name == "fake"


def test_auto_gives_no_joules_where_there_is_no_sensor_and_the_model_must_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, absent=AbsentMeter, model=ModelMeter)
    assert open_meter("auto").kind == "none"
    assert open_meter("model").kind == "modelled"


def test_auto_prefers_the_board_to_its_rails_and_both_to_a_battery(monkeypatch: pytest.MonkeyPatch) -> None:
    rails = type("rapl", (FakeMeter,), {"name": "rapl"})
    board = type("hwmon", (FakeMeter,), {"name": "hwmon", "kind": "measured-board"})
    battery = type("battery", (FakeMeter,), {"name": "battery", "kind": "battery"})
    install(monkeypatch, battery=battery, rails=rails)
    assert open_meter().name == "rapl"
    install(monkeypatch, battery=battery, rails=rails, board=board)
    assert open_meter().name == "hwmon"


def test_a_phase_whose_sensor_was_silent_has_no_joules() -> None:
    meter, clock = FakeMeter(), Clock()
    recorder = PhaseRecorder(meter, clock=clock)
    for name, lost_s in (("train", 5.0), ("prune", 0.5)):
        with recorder.phase(name):  # type: ignore[arg-type]
            clock.now_s += 10
            meter.joules += 7
            meter.lost_s += lost_s
    assert recorder.snapshot() == {"train": PhaseCost(10.0, None), "prune": PhaseCost(10.0, 7.0)}


def test_a_phase_that_lost_its_joules_once_does_not_get_them_back() -> None:
    meter, clock = FakeMeter(), Clock()
    recorder = PhaseRecorder(meter, clock=clock)
    for lost_s in (10.0, 0.0):
        with recorder.phase("train"):
            clock.now_s += 10
            meter.joules += 7
            meter.lost_s += lost_s
    assert recorder.snapshot() == {"train": PhaseCost(20.0, None)}


def test_idle_power_is_what_the_device_draws_while_the_process_waits() -> None:
    meter = FakeMeter()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        time.sleep(0.05)
        meter.joules += 1.0

    idle_w = measure_idle(meter, 3.0, sleep=sleep)
    assert waited == [3.0]
    assert idle_w is not None
    assert 0 < idle_w <= 1.0 / 0.05
    assert measure_idle(meter, 0.0, sleep=sleep) is None
    assert measure_idle(NullMeter(), 3.0, sleep=sleep) is None
    assert measure_idle(ModelMeter(), 3.0, sleep=sleep) == 0.0
    assert waited == [3.0]


def test_the_idle_baseline_is_subtracted_and_never_below_nothing() -> None:
    assert above_idle(PhaseCost(10.0, 30.0), 2.0) == 10.0
    assert above_idle(PhaseCost(10.0, 15.0), 2.0) == 0.0
    assert above_idle(PhaseCost(10.0, None), 2.0) is None
    assert above_idle(PhaseCost(10.0, 15.0), None) is None


def test_modelled_joules_are_called_so_and_every_figure_names_its_source() -> None:
    assert joules_text(3.14, "modelled") == "3.1 J modelled"
    assert joules_text(3.14, "calibrated") == "3.1 J calibrated"
    assert joules_text(3.14, "measured-board") == "3.1 J"
    assert meter_text("hwmon", "measured-board", hz=118.4, idle_w=2.5) == "measured-board (hwmon, 118 Hz, idle 2.50 W)"
    assert meter_text("cpu-model", "modelled", hz=0.0, idle_w=0.0) == "modelled (cpu-model)"


def test_auto_takes_the_highest_priority_within_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    first = type("zz", (FakeMeter,), {"name": "zz", "priority": 7})
    second = type("aa", (FakeMeter,), {"name": "aa", "priority": 6})
    silly = type("silly", (FakeMeter,), {"name": "0", "priority": "highest"})
    install(monkeypatch, silly=silly, second=second, first=first)
    assert open_meter().name == "zz"


def test_auto_prefers_rapl_to_perf_the_pmic_and_hwmon() -> None:
    meters = [cast("type[EnergyMeter]", entry.load()) for entry in metadata.entry_points(group="sparsyedge.meters")]
    rails = sorted((meter for meter in meters if meter.kind == "measured-rails"), key=lambda meter: -meter.priority)
    assert [meter.name for meter in rails] == ["rapl", "perf", "pmic", "hwmon-energy", "hwmon"]
    assert len({meter.priority for meter in rails}) == 5


def test_auto_without_any_meter_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, absent=AbsentMeter)
    assert open_meter().kind == "none"


@pytest.mark.parametrize("broken", ["no_such_package:Meter", RaisingMeter, KindlessMeter])
def test_auto_leaves_out_a_broken_meter_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: type | str
) -> None:
    install(monkeypatch, broken=broken, fake=FakeMeter)
    with caplog.at_level(logging.WARNING):
        assert open_meter().name == "fake"
    assert "is left out" in caplog.text


def test_an_opened_meter_is_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake=FakeMeter)
    meter = open_meter("fake")
    assert isinstance(meter, FakeMeter)
    assert meter.running


def test_none_asks_no_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake=FakeMeter)
    meter: EnergyMeter = open_meter("none")
    assert (meter.name, meter.kind, meter.read_joules()) == ("none", "none", 0.0)


def test_an_unknown_meter_is_refused_with_the_known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, rapl=FakeMeter, hwmon=FakeMeter)
    with pytest.raises(ConfigError, match="'rappel' is unknown; known are auto, none, hwmon, rapl"):
        open_meter("rappel")


def test_a_named_meter_without_its_sensor_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, absent=AbsentMeter)
    with pytest.raises(ConfigError, match=f"'absent' finds no sensor that it can read under {tmp_path}"):
        open_meter("absent", root=tmp_path)


@pytest.mark.parametrize("broken", ["no_such_package:Meter", RaisingMeter])
def test_a_named_meter_that_is_broken_is_refused(monkeypatch: pytest.MonkeyPatch, broken: type | str) -> None:
    install(monkeypatch, broken=broken)
    with pytest.raises(ConfigError, match=r"'broken' .* cannot be used"):
        open_meter("broken")


def test_peak_memory_is_this_process_own_and_not_its_parents() -> None:
    ballast = bytearray(150_000_000)
    assert peak_rss_mb() > 150
    code = "from sparsyedge.edge.device.energy import peak_rss_mb; print(peak_rss_mb())"
    child = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert 1 < float(child.stdout) < 120
    assert len(ballast) == 150_000_000
