"""What a board drew under known loads, as `sparsyedge bench meter` measured it; a file that `cpu-model` reads."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.errors import ConfigError

__all__ = ["FORMAT", "Calibration", "Load", "PowerCurve", "Step", "board_name", "read_calibration"]

FORMAT: Literal[1] = 1
MAX_FILE_BYTES = 256 * 1024
Load = Literal["idle", "compute", "memory"]
"""Nothing; products of small matrices, which stay in the caches; copies of arrays that do not fit into them."""
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Watts = Annotated[float, msgspec.Meta(ge=0, le=100_000)]
Cores = Annotated[float, msgspec.Meta(ge=0, le=4096)]


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the board drew under one load."""

    load: Load
    cores: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    """How many were given work."""
    busy_cores: Cores
    """How many the work really got, from its processor time."""
    watts: Watts
    """The mean of the windows."""
    deviation_w: Watts
    """The standard deviation of the windows."""
    windows: Annotated[int, msgspec.Meta(ge=1)]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=100_000)]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps of one board, and who measured them."""

    format: Literal[1]
    made_at: Word
    board: Word
    cores: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    meter: Word
    kind: Literal["measured-board", "measured-rails", "battery"]
    hz: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=2, max_length=1000)]
    notes: tuple[str, ...] = ()

    @property
    def idle_w(self) -> float:
        """Watts without load."""
        return next(step.watts for step in self.steps if step.load == "idle")

    @property
    def spread(self) -> float:
        """How far the loads are from their mean at most, as a share of it: the model cannot tell them apart."""
        shares = [0.0]
        for cores in {step.cores for step in self.steps if step.cores}:
            watts = [step.watts for step in self.steps if step.cores == cores]
            shares.append((max(watts) - min(watts)) / (sum(watts) / len(watts)) / 2 if any(watts) else 0.0)
        return max(shares)


class PowerCurve:
    """Watts by busy cores: straight lines between the means of the steps with equally many cores."""

    def __init__(self, calibration: Calibration) -> None:
        by_cores: dict[int, list[Step]] = {}
        for step in calibration.steps:
            by_cores.setdefault(step.cores, []).append(step)
        points = [
            (_mean([step.busy_cores for step in steps]), _mean([step.watts for step in steps]))
            for _, steps in sorted(by_cores.items())
        ]
        # What ran beside the idle step is not this process's work.
        self._points = [(0.0, points[0][1]), *points[1:]]
        self._most_cores = float(calibration.cores)

    def watts(self, busy_cores: float) -> float:
        """The board's watts while that many cores work; beyond the last step, on the line of the last two."""
        cores = min(max(busy_cores, 0.0), self._most_cores)
        pairs = list(zip(self._points, self._points[1:], strict=False))
        (low, low_w), (high, high_w) = next((pair for pair in pairs if cores <= pair[1][0]), pairs[-1])
        return max(low_w + (high_w - low_w) * (cores - low) / (high - low), 0.0)


def read_calibration(path: Path, *, root: Path = Path("/sys")) -> Calibration:
    """A calibration of this board; raises ConfigError if the file is none, is damaged, or is another board's."""
    again = "make one with `sparsyedge bench meter --out FILE` on this board"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
        calibration = msgspec.json.decode(content, type=Calibration)
        trouble = _trouble(calibration)
    except OSError as error:
        raise ConfigError(f"cannot read the calibration {path}: {error.strerror or error}; {again}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a calibration: {error}; {again}") from error
    if trouble:
        raise ConfigError(f"the calibration {path} cannot be used: {trouble}; {again}")
    here, cores = board_name(root), available_cores()
    if (calibration.board, calibration.cores) != (here, cores):
        raise ConfigError(
            f"the calibration {path} is of a {calibration.board} with {calibration.cores} cores, and this is a {here} "
            f"with {cores}; {again}"
        )
    return calibration


def board_name(root: Path = Path("/sys"), proc: Path = Path("/proc")) -> str:
    """The board's model, or else its processor's."""
    model = _text(root / "firmware/devicetree/base/model").strip("\0\n ")
    lines = [line.partition(":") for line in _text(proc / "cpuinfo").splitlines()]
    named = next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")
    return (model or named or platform.machine() or "unknown")[:200]


def _trouble(calibration: Calibration) -> str:
    """Why there is no curve through these steps; empty if there is."""
    idle = [step for step in calibration.steps if step.load == "idle"]
    busy = sorted({step.cores for step in calibration.steps if step.load != "idle"})
    if len(idle) != 1 or idle[0].cores or not busy or busy[0] == 0:
        return "it needs one idle step without cores, and steps with some"
    if busy[-1] > calibration.cores:
        return f"it has a step with {busy[-1]} of {calibration.cores} cores"
    means = [_mean([step.busy_cores for step in calibration.steps if step.cores == cores]) for cores in busy]
    if any(second - first <= 0 for first, second in zip([0.0, *means], means, strict=False)):
        return "a step with more cores was no busier than one with fewer"
    return ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
