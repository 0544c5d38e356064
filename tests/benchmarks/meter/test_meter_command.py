"""`bench meter` where there is no meter: the load is real, and a count of it stands in for a chip."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from sparsyedge.benchmarks.meter import command
from sparsyedge.benchmarks.meter.measurement import measure, plan_of
from sparsyedge.edge.config import MetersConfig
from sparsyedge.edge.device.energy import MeterSettings, NullMeter, open_meter
from sparsyedge.edge.errors import ConfigError, MeterError
from sparsyedge.edge.phase_costs import Kind
from sparsyedge.hardware.meters.calibration import read_calibration
from sparsyedge.hardware.meters.sampler import NoReading, PowerSampler

pytestmark = pytest.mark.heavy


class BoardMeter(PowerSampler):
    """2 W, and 1.5 W for each process that this one keeps busy: what a sensor in its supply would see."""

    name = "board"
    kind: Kind = "measured-board"
    watts_of: Callable[[int], float] = staticmethod(lambda busy: 2.0 + 1.5 * busy)

    def __init__(self) -> None:
        super().__init__(lambda: type(self).watts_of(_children()), period_s=0.01)

    @classmethod
    def probe(cls, root: Path) -> BoardMeter:
        return cls()


def _children() -> int:
    children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()
    return sum("benchmarks.meter.load" in _command_line(child) for child in children)


def _command_line(process: str) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[BoardMeter]]:
    class Entry:
        name, value = "board", "tests:BoardMeter"

        def load(self) -> type[BoardMeter]:
            return BoardMeter

    real = metadata.entry_points

    def entry_points(*, group: str) -> list[object]:
        return [Entry(), *(each for each in real(group=group) if each.name == "cpu-model")]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    yield BoardMeter
    BoardMeter.watts_of = staticmethod(lambda busy: 2.0 + 1.5 * busy)


def test_a_board_is_calibrated_and_counts_without_its_meter_from_then_on(
    board: type[BoardMeter], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pi-03.json"
    assert command.main(["--seconds", "1", "--cores", "1", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"idle +\d\.\d{3} W  \+- \d\.\d{3} +0\.00 cores busy\ncompute, 1 core +\d\.\d{3} W", printed)
    assert "board (measured-board, " in printed
    calibration = read_calibration(path)
    assert [(step.load, step.cores) for step in calibration.steps] == [("idle", 0), ("compute", 1), ("memory", 1)]
    assert [step.watts for step in calibration.steps] == pytest.approx([2.0, 3.5, 3.5], rel=0.3)
    assert all(step.busy_cores > 0 for step in calibration.steps[1:])
    meter = open_meter("cpu-model", settings=MeterSettings("pi-03", MetersConfig(calibration=str(path))))
    meter.stop()
    assert (meter.name, meter.kind) == ("cpu-model from board", "calibrated")
    assert _children() == 0


def test_json_is_the_calibration_itself(board: type[BoardMeter], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seconds", "0.3", "--cores", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["meter"], document["kind"], document["format"]) == ("board", "measured-board", 1)
    assert document["hz"] > 0


def test_a_meter_that_does_not_see_the_load_calibrates_nothing(board: type[BoardMeter], tmp_path: Path) -> None:
    board.watts_of = staticmethod(lambda busy: 2.0)
    with pytest.raises(MeterError, match=r"board says 2 W idle and at most 2 W under load"):
        command.main(["--seconds", "0.3", "--cores", "1", "--out", str(tmp_path / "none.json")])
    assert not (tmp_path / "none.json").exists()


def test_a_meter_that_vanishes_in_mid_run_calibrates_nothing_and_leaves_no_load_behind(
    board: type[BoardMeter], tmp_path: Path
) -> None:
    def vanishing(busy: int) -> float:
        if busy:
            raise NoReading("gone")
        return 2.0

    board.watts_of = staticmethod(vanishing)
    with pytest.raises(MeterError, match=r"the meter board was silent for .* s in the step compute, 1 core"):
        command.main(["--seconds", "0.3", "--cores", "1", "--out", str(tmp_path / "none.json")])
    assert not (tmp_path / "none.json").exists()
    assert _children() == 0


def test_a_model_calibrates_nothing(board: type[BoardMeter]) -> None:
    with pytest.raises(ConfigError, match="cpu-model is a model: a calibration from it would only be the model again"):
        command.main(["--meter", "cpu-model"])


def test_a_machine_without_a_meter_is_told_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"no energy meter .*--meter .*--config device.toml; --dry shows the steps"):
        command.main(["--meter", "none"])


def test_a_dry_run_lists_the_steps_and_needs_no_meter(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--dry", "--cores", "1", "--seconds", "5"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1:] == ["idle: 5 s", "compute, 1 core: 5 s", "memory, 1 core: 5 s", "in all 15 s"]


def test_steps_double_up_to_all_cores() -> None:
    assert [plan.cores for plan in plan_of(6)] == [0, 1, 2, 4, 6, 1, 2, 4, 6]
    assert [plan.cores for plan in plan_of(4)] == [0, 1, 2, 4, 1, 2, 4]


def test_a_counter_of_joules_is_read_as_well_as_a_sampler() -> None:
    class Counter(NullMeter):
        kind: Kind = "measured-rails"

        def read_joules(self) -> float:
            return 3.0 * os.times().elapsed

    found = measure(Counter(), plan_of(1)[0], 0.5)
    assert found.watts == pytest.approx(3.0, rel=0.3)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
