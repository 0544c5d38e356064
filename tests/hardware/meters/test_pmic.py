from __future__ import annotations

from pathlib import Path

import pytest

from sparsyedge.hardware.meters.pmic import MODEL_FILE, PmicMeter, rail_watts

ANSWER = """\
 3V7_WL_SW_A current(0)=0.10000000A
   3V3_SYS_A current(1)=0.20000000A
  VDD_CORE_A current(7)=1.50000000A
 3V7_WL_SW_V volt(8)=3.70000000V
   3V3_SYS_V volt(9)=3.30000000V
  VDD_CORE_V volt(15)=0.80000000V
     EXT5V_V volt(24)=5.14876000V
      BATT_V volt(25)=0.00097656V
"""
WATTS = 0.1 * 3.7 + 0.2 * 3.3 + 1.5 * 0.8


def pi(root: Path, monkeypatch: pytest.MonkeyPatch, *, model: str = "Raspberry Pi 5 Model B Rev 1.0") -> Path:
    """A board of that model with a `vcgencmd` of our own on the PATH."""
    (root / MODEL_FILE).parent.mkdir(parents=True)
    (root / MODEL_FILE).write_text(f"{model}\0")
    command = root / "vcgencmd"
    command.write_text(f"#!/bin/sh\n[ \"$1\" = pmic_read_adc ] || exit 1\ncat << 'END'\n{ANSWER}END\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(root), prepend=":")
    return command


def test_rails_with_both_numbers_are_added_and_the_others_left_out() -> None:
    assert rail_watts(ANSWER) == pytest.approx(WATTS)


@pytest.mark.parametrize("answer", ["", 'error=1 error_msg="Command not registered"', " EXT5V_V volt(24)=5.1V"])
def test_an_answer_without_rails_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match="names no rail"):
        rail_watts(answer)


@pytest.mark.parametrize("model", ["Raspberry Pi 5 Model B Rev 1.0", "Raspberry Pi Compute Module 5 Rev 1.0"])
def test_a_pi_5_measures_its_rails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    pi(tmp_path, monkeypatch, model=model)
    meter = PmicMeter.probe(tmp_path)
    assert meter is not None
    assert (meter.name, meter.kind) == ("pmic", "measured-rails")
    assert meter._read_watts() == pytest.approx(WATTS)


@pytest.mark.parametrize("model", ["Raspberry Pi 4 Model B Rev 1.5", "Raspberry Pi 3 Model B Plus Rev 1.3"])
def test_older_boards_have_no_such_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    pi(tmp_path, monkeypatch, model=model)
    assert PmicMeter.probe(tmp_path) is None


def test_a_chip_that_does_not_answer_is_no_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pi(tmp_path, monkeypatch).write_text("#!/bin/sh\nexit 1\n")
    assert PmicMeter.probe(tmp_path) is None


def test_a_chip_that_stops_answering_loses_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = pi(tmp_path, monkeypatch)
    seconds = [0.0]
    meter = PmicMeter(str(command), clock=lambda: seconds[0])
    meter.sample()
    command.write_text("#!/bin/sh\nexit 1\n")
    seconds[0] = 3.0
    meter.sample()
    assert (meter.read_joules(), meter.lost_s) == (0.0, 3.0)
    assert meter.overhead > 0
