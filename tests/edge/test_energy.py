from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from sparsyedge.edge.energy import EnergyMeter, Kind, NullMeter, PhaseCost, PhaseRecorder, open_meter, peak_rss_mb
from sparsyedge.edge.errors import ConfigError


class FakeMeter(NullMeter):
    """Joules that a test sets by hand."""

    name = "fake"
    kind: Kind = "measured"

    def __init__(self) -> None:
        self.joules = 0.0
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


def test_auto_falls_back_to_a_model_where_there_is_no_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, absent=AbsentMeter, model=ModelMeter)
    meter = open_meter("auto")
    assert (meter.name, meter.kind) == ("model", "modelled")


def test_auto_prefers_rapl_to_hwmon(monkeypatch: pytest.MonkeyPatch) -> None:
    hwmon = type("hwmon", (FakeMeter,), {"name": "hwmon"})
    rapl = type("rapl", (FakeMeter,), {"name": "rapl"})
    other = type("other", (FakeMeter,), {"name": "a-usb-meter"})
    install(monkeypatch, hwmon=hwmon, other=other, rapl=rapl)
    assert open_meter().name == "rapl"


def test_auto_without_any_meter_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, absent=AbsentMeter)
    assert open_meter().kind == "none"


@pytest.mark.parametrize("broken", ["no_such_package:Meter", RaisingMeter, KindlessMeter])
def test_auto_leaves_out_a_broken_meter_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: type | str
) -> None:
    install(monkeypatch, broken=broken, model=ModelMeter)
    with caplog.at_level(logging.WARNING):
        assert open_meter().name == "model"
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
    code = "from sparsyedge.edge.energy import peak_rss_mb; print(peak_rss_mb())"
    child = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert 1 < float(child.stdout) < 120
    assert len(ballast) == 150_000_000
