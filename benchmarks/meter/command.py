"""The command line of `sparsyedge bench meter`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.benchmarks.common.machine import disturbance
from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.meter.measurement import Plan, measure, plan_of
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import DeviceConfig, load_config
from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.device.energy import EnergyMeter, MeterSettings, meter_names, open_meter
from sparsyedge.edge.errors import ConfigError, MeterError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.hardware.meters.calibration import FORMAT, Calibration, board_name

__all__ = ["main", "make_parser"]

NO_METER = (
    "this machine has no energy meter that could be calibrated against; wire one (docs/reference/meters.md), or name "
    "one with --meter and, for a plug or a USB meter, --config device.toml; --dry shows the steps without one"
)


def main(argv: list[str]) -> int:
    """Measure each step, print a table or, with --json, the document, and write the calibration."""
    arguments = make_parser().parse_args(argv)
    plans = plan_of(arguments.cores)
    if arguments.dry:
        print(_plan_text(plans, arguments))
        return 0
    meter = _open(arguments)
    try:
        calibration = _calibrate(meter, plans, arguments)
    finally:
        meter.stop()
    _refuse_deaf(calibration)
    document = msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n"
    print(document.decode() if arguments.json else _summary(calibration))
    if arguments.out is not None:
        write_atomically(arguments.out, document)
    return 0


def _calibrate(meter: EnergyMeter, plans: list[Plan], arguments: argparse.Namespace) -> Calibration:
    steps = []
    for plan in plans:
        steps.append(measure(meter, plan, arguments.seconds))
        if not arguments.json:
            print(_row(str(plan), steps[-1].watts, steps[-1].deviation_w, steps[-1].busy_cores), flush=True)
    note = disturbance(arguments.cores)
    return Calibration(
        format=FORMAT,
        made_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        board=board_name(),
        cores=available_cores(),
        meter=meter.name,
        kind=_measured(meter),
        hz=meter.sample_hz,
        steps=tuple(steps),
        notes=(note,) if note else (),
    )


def _open(arguments: argparse.Namespace) -> EnergyMeter:
    settings = MeterSettings()
    if arguments.config is not None:
        config = load_config(arguments.config, DeviceConfig)
        settings = MeterSettings(config.id, config.meters)
    meter = open_meter(arguments.meter, settings=settings)
    try:
        _measured(meter)
    except ConfigError:
        meter.stop()
        raise
    return meter


def _measured(meter: EnergyMeter) -> Literal["measured-board", "measured-rails", "battery"]:
    """The meter's kind; raises ConfigError if it measures nothing."""
    if meter.kind == "none":
        raise ConfigError(NO_METER)
    if meter.kind == "modelled" or meter.kind == "calibrated":
        raise ConfigError(f"{meter.name} is a model: a calibration from it would only be the model again; {NO_METER}")
    return meter.kind


def _refuse_deaf(calibration: Calibration) -> None:
    """Raise MeterError if the meter does not show the load."""
    idle = next(step for step in calibration.steps if step.load == "idle")
    busiest = max(calibration.steps, key=lambda step: step.watts)
    if busiest.watts - idle.watts <= 2 * max(idle.deviation_w, busiest.deviation_w):
        raise MeterError(
            f"{calibration.meter} says {idle.watts:.3g} W idle and at most {busiest.watts:.3g} W under load, which is "
            "within its noise: it measures something else, or too coarsely; nothing was written"
        )


def _plan_text(plans: list[Plan], arguments: argparse.Namespace) -> str:
    total_s = arguments.seconds * len(plans)
    lines = [f"{plan}: {arguments.seconds:g} s" for plan in plans]
    return "\n".join(["dry run, nothing is loaded and no meter is read", *lines, f"in all {total_s:g} s"])


def _row(step: str, watts: float, deviation_w: float, busy: float) -> str:
    return f"{step:<18} {watts:9.3f} W  +- {deviation_w:.3f}   {busy:5.2f} cores busy"


def _summary(calibration: Calibration) -> str:
    rate = f"{calibration.hz:.1f} Hz" if calibration.hz else "counts energy itself"
    lines = [
        f"{calibration.board}, {calibration.cores} cores; {calibration.meter} ({calibration.kind}, {rate}), "
        f"{calibration.steps[0].windows} windows per step",
        f"compute and memory differ by up to {100 * calibration.spread:.0f} % from their mean; processor time cannot "
        "tell them apart",
        *calibration.notes,
    ]
    return "\n".join(lines)


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge bench meter",
        description="What this board draws idle, with 1 to all cores busy, and with memory traffic; a calibration for "
        "the meter cpu-model.",
    )
    parser.add_argument("--meter", default="auto", help=f"which: {', '.join(meter_names())} (default: %(default)s)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a device.toml with [meters], for plug or USB meter"
    )
    parser.add_argument(
        "--seconds", type=positive_number, default=10.0, metavar="S", help="of each step (default: %(default)g)"
    )
    parser.add_argument("--cores", type=_cores, default=available_cores(), help="the most to load (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the calibration there")
    parser.add_argument("--json", action="store_true", help="print the calibration instead of the table")
    parser.add_argument("--dry", action="store_true", help="print the steps and end; needs no meter")
    return parser


def _cores(text: str) -> int:
    cores = positive(text)
    if cores > available_cores():
        raise argparse.ArgumentTypeError(f"{cores} cores; this process may use {available_cores()}")
    return cores
