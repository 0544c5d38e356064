"""One federated run until its target is held: simulated devices with real bytes and phases, stopped by the rule."""

from __future__ import annotations

import shutil
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import msgspec

from sparsyedge.benchmarks.common.machine import disturbance, machine
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.to_target.result import Point, Result, Settings, held_round
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.record import run_requests
from sparsyedge.coordinator.record.observer import SilentObserver
from sparsyedge.coordinator.record.records import PhaseRecord, RoundRecord
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import MethodConfig
from sparsyedge.edge.storage import write_atomically

__all__ = ["label_of", "result_of"]


class _StopWhenHeld(SilentObserver):
    """Ends a run after the round that shows its target to be held."""

    def __init__(self, run_dir: Path, target: float) -> None:
        self._run_dir, self._target = run_dir, target
        # A run that was interrupted goes on with what its record says.
        self._seen: list[tuple[int, float | None]] = []
        if Store.exists(run_dir):
            with closing(Store.open(run_dir)) as store:
                self._seen = _accuracies(store.summary().rounds)

    @property
    def held(self) -> int | None:
        return held_round(self._seen, self._target)

    def round_closed(self, record: RoundRecord) -> None:
        self._seen.append((record.round, record.test_accuracy))
        if self.held is not None:
            run_requests.stop(self._run_dir)


def label_of(method: MethodConfig) -> str:
    """A method's name in tables and files."""
    return method.name if method.sparsity is None else f"{method.name}@{method.sparsity:g}"


def result_of(settings: Settings, method: MethodConfig, seed: int, *, out: Path, workers: int | None) -> Result:
    """The result on disk, or that of a run, which goes on where an interrupted one stopped."""
    path = out / f"{label_of(method)}-{seed}.json"
    if path.is_file():
        return _read(path, settings)
    config = run_config(settings, method, seed, out)
    observer = _StopWhenHeld(config.run_path, settings.target)
    if observer.held is None:
        simulate(config, workers=workers, observer=observer)
    result = _summarize(settings, method, seed, config)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    shutil.rmtree(config.run_path, ignore_errors=True)
    return result


def run_config(settings: Settings, method: MethodConfig, seed: int, out: Path) -> SimulatedRunConfig:
    """The run of one method and seed. Runs that share a seed differ in their method alone."""
    name = label_of(method).replace("@", "-")
    return SimulatedRunConfig(
        name=f"to-target-{name}-{seed}",
        artifacts=str(out / "work" / f"artifacts-{name}-{seed}"),
        run_dir=str(out / "work" / f"{name}-{seed}"),
        dataset=settings.dataset,
        rounds=settings.rounds,
        epochs=settings.epochs,
        cohort_size=settings.cohort,
        codec=settings.codec,
        learning_rate=LearningRateConfig(start=settings.learning_rate, end=settings.last_learning_rate),
        method=method,
        threads=settings.threads,
        seed=seed,
        simulation=SimulationConfig(
            devices=settings.devices,
            alpha=settings.alpha,
            partition_seed=seed,
            meter=settings.meter,
            export=ExportConfig(model=settings.model, width=settings.width, seed=seed),
        ),
    )


def _read(path: Path, settings: Settings) -> Result:
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a result of this benchmark: {error}; remove it or choose --out") from error
    if result.settings != settings:
        raise ConfigError(f"{path} was made with other settings; give the same ones again, or choose another --out")
    return result


def _summarize(settings: Settings, method: MethodConfig, seed: int, config: SimulatedRunConfig) -> Result:
    with closing(Store.open(config.run_path)) as store:
        summary, phases = store.summary(), store.phase_records()
    meter = summary.devices[0]
    disturbed = disturbance(settings.threads)
    return Result(
        method=label_of(method),
        seed=seed,
        settings=settings,
        held_round=held_round(_accuracies(summary.rounds), settings.target),
        points=_points(summary.rounds, phases),
        energy_source=meter.energy_source,
        energy_kind=meter.energy_kind,
        energy_hz=meter.energy_hz,
        model_id=summary.run.model_id,
        machine=machine(),
        notes=(disturbed,) if disturbed else (),
    )


def _accuracies(rounds: tuple[RoundRecord, ...]) -> list[tuple[int, float | None]]:
    return [(record.round, record.test_accuracy) for record in rounds]


def _points(rounds: tuple[RoundRecord, ...], phases: tuple[PhaseRecord, ...]) -> tuple[Point, ...]:
    """What the run had cost by the end of each round."""
    by_device: dict[int, dict[str, float]] = {}
    joules: dict[int, float | None] = {}
    for phase in phases:
        device_s = by_device.setdefault(phase.round, {})
        device_s[phase.device] = device_s.get(phase.device, 0.0) + phase.seconds
        # One unknown part makes the sum unknown.
        joules[phase.round] = _sum(joules.get(phase.round, 0.0), phase.joules)
    spent: list[float | None] = list(accumulate((joules.get(record.round) for record in rounds), _sum))
    down = list(accumulate(record.bytes_down for record in rounds))
    up = list(accumulate(record.bytes_up for record in rounds))
    slowest = list(accumulate(max(by_device.get(record.round, {}).values(), default=0.0) for record in rounds))
    all_s = list(accumulate(sum(by_device.get(record.round, {}).values()) for record in rounds))
    return tuple(
        Point(
            round=record.round,
            accuracy=record.test_accuracy,
            bytes_down=down[place],
            bytes_up=up[place],
            seconds=slowest[place],
            device_s=all_s[place],
            joules=spent[place],
        )
        for place, record in enumerate(rounds)
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
