"""Runs one setting, or reads the result of an earlier run: a small JSON document with figures for every round."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.benchmarks.common.machine import machine
from sparsyedge.benchmarks.paper.mask_overlap import overlap_document
from sparsyedge.benchmarks.paper.settings import Setting
from sparsyedge.benchmarks.paper.starts import dataset_for, init_for, prepare
from sparsyedge.benchmarks.simulate import Backend, simulate
from sparsyedge.benchmarks.simulate.config import ExportConfig, SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.data_used import read_data_used
from sparsyedge.benchmarks.simulate.engine import Engine
from sparsyedge.coordinator.config import LearningRateConfig
from sparsyedge.coordinator.delivery_config import DeliveryConfig
from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.record.metrics import CLASS_PREFIX, LAYER_PREFIX, LEVEL_PREFIX
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import DataError
from sparsyedge.edge.storage import write_atomically
from sparsyedge.edge.wire.codecs import DEFAULT_CODEC

__all__ = ["figures", "finished_result", "read_result", "run_config", "run_setting"]

LATE_SHARE = 0.5
"""`late_accuracy` averages the last half of the rounds: with few labels per device, one evaluation says little."""


def run_setting(
    setting: Setting,
    directory: Path,
    *,
    data_dir: str | None,
    observer: Observer,
    workers: int | None = None,
    engine: Engine | None = None,
    backend: Backend = "ort",
) -> dict[str, Any]:
    """The result of a setting: read from disk, resumed after an interruption, or run from the start."""
    if (found := finished_result(setting, directory, backend=backend)) is not None:
        return found
    suffix = _suffix(backend)
    start = prepare(setting, directory / f"runs{suffix}", data_dir=data_dir)
    config = run_config(setting, directory / f"runs{suffix}", data_dir=data_dir)
    summary = simulate(config, workers=workers, engine=engine, backend=backend, observer=observer)
    with closing(Store.open(config.run_path)) as store:
        metrics = store.metrics()
    overlap = overlap_document(MaskFiles(config.run_path, rounds=setting.rounds).load())
    rounds = [_round(msgspec.to_builtins(record), metrics.get(record.round, {})) for record in summary.rounds]
    result = {
        "setting": msgspec.to_builtins(setting),
        "backend": backend,
        "machine": machine(),
        "data": msgspec.to_builtins(read_data_used(config.run_path)),
        "model_id": summary.run.model_id,
        "layer_sparsity": _layers(metrics.get(setting.rounds, {})),
        "rounds": rounds,
        "figures": figures(rounds),
        **({} if overlap is None else {"mask_overlap": overlap}),
        **({} if start is None else {"start": start}),
    }
    write_atomically(_path(setting, directory, backend), (json.dumps(result, indent=1) + "\n").encode())
    return result


def finished_result(setting: Setting, directory: Path, *, backend: Backend = "ort") -> dict[str, Any] | None:
    """The result of a setting from disk; None if it has not been run to its end."""
    path = _path(setting, directory, backend)
    return read_result(path) if path.is_file() else None


def _path(setting: Setting, directory: Path, backend: Backend) -> Path:
    return directory / f"{setting.key}{_suffix(backend)}.json"


def _suffix(backend: Backend) -> str:
    return "" if backend == "ort" else f".{backend}"


def read_result(path: Path) -> dict[str, Any]:
    """Read a result from disk; raises DataError for any other file."""
    try:
        result = json.loads(path.read_text())
        result["figures"], result["setting"], result["rounds"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a result of `bench paper` ({error!r}); remove it to run its setting again"
        ) from error
    return result  # type: ignore[no-any-return]


def run_config(setting: Setting, directory: Path, *, data_dir: str | None) -> SimulatedRunConfig:
    """The run of a setting in its own folder; runs that start from the same artifacts share them."""
    run_dir = directory / setting.key
    start: tuple[object, ...] = (setting.dataset, setting.model, setting.method, setting.width, setting.training_seed)
    if setting.training is not None:
        start = (*start, setting.training, setting.init, setting.pretraining)
    init = init_for(setting, directory, data_dir=data_dir)
    return SimulatedRunConfig(
        name=setting.key[:63],
        artifacts=str(directory / "artifacts" / hashlib.sha256(msgspec.json.encode(start)).hexdigest()[:16]),
        run_dir=str(run_dir),
        dataset=dataset_for(setting.dataset, directory),
        data_dir=data_dir,
        rounds=setting.rounds,
        cohort_size=setting.cohort,
        selection=setting.selection or "uniform",
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        learning_rate=LearningRateConfig(start=setting.learning_rate, end=setting.last_learning_rate),
        codec=setting.codec or DEFAULT_CODEC,
        seed=setting.training_seed,
        eval_every=setting.eval_every,
        method=setting.method,
        training=setting.training,
        delivery=DeliveryConfig(average=setting.average or 1),
        simulation=SimulationConfig(
            devices=setting.devices,
            alpha=setting.alpha,
            validation=setting.validation or 0,
            sampling_seed=setting.seed if setting.seeds_vary == "sampling" else None,
            # At small widths our ops are twice as fast as the training API, even on dense weights.
            runtime="stock",
            export=ExportConfig(
                model=setting.model,
                init=None if init is None else str(init),
                width=setting.width,
                seed=setting.training_seed,
            ),
        ),
    )


def figures(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The figures that tables show; None if not measured."""
    accuracies = [(row["round"], row["test_accuracy"]) for row in rounds if row.get("test_accuracy") is not None]
    late = [accuracy for number, accuracy in accuracies if number > (1 - LATE_SHARE) * len(rounds)]
    singles = [row["single_accuracy"] for row in rounds[int(LATE_SHARE * len(rounds)) :] if "single_accuracy" in row]
    updates = sum(row["updates"] for row in rounds)
    values = sum(row["nonzeros_down"] + row["nonzeros_up"] for row in rounds)
    moved = sum(row["bytes_down"] + row["bytes_up"] for row in rounds)
    dense_bytes = rounds[0]["dense_bytes"]
    # From round 2 on: round 1 starts from dense weights, which contain any mask.
    later = rounds[1:]
    return {
        "accuracy": accuracies[-1][1] if accuracies else None,
        "late_accuracy": sum(late) / len(late) if late else None,
        "best_accuracy": max((accuracy for _, accuracy in accuracies), default=None),
        "sparsity": rounds[-1]["global_sparsity"],
        "fewer_values": 2 * updates * dense_bytes / 4 / values if values else None,
        "fewer_bytes": 2 * updates * dense_bytes / moved if moved else None,
        "regrown_devices": _mean([row.get("regrown_devices") for row in later]),
        "regrown_global": _mean([row.get("regrown_global") for row in later]),
        "mask_iou": _mean([row.get("mask_iou") for row in later]),
        "nestedness": _mean([row.get("nestedness") for row in later]),
        "mask_agreement": _mean([row.get("mask_agreement") for row in later]),
        "l2_global": rounds[-1].get("l2_global"),
        "cosine_global": rounds[-1].get("cosine_global"),
        "l2_round": _mean([row.get("l2_round") for row in later]),
        "cosine_round": _mean([row.get("cosine_round") for row in later]),
        "l2_device": _mean([row.get("l2_device_mean") for row in later]),
        "cosine_device": _mean([row.get("cosine_device_mean") for row in later]),
        # The rest is there only if it was measured: documents keep the figures that they were written with.
        **({"cosine_pairs": pairs} if (pairs := _mean([row.get("cosine_pairs") for row in later])) is not None else {}),
        **_at_highest_target(rounds[-1]),
        **({"final_test_accuracy": rounds[-1]["final_test_accuracy"]} if "final_test_accuracy" in rounds[-1] else {}),
        **({"late_single_accuracy": sum(singles) / len(singles)} if singles else {}),
    }


def _at_highest_target(last: Mapping[str, Any]) -> dict[str, float | None]:
    """The last model's accuracy after pruning to the highest target, for runs whose groups have their own targets."""
    targets = [name for name in last if name.startswith(LEVEL_PREFIX)]
    highest = max(targets, key=lambda name: float(name.removeprefix(LEVEL_PREFIX)), default=None)
    return {} if highest is None else {"accuracy_sparsest": last[highest]}


def _round(record: dict[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """The figures to keep of a round; those of single layers and classes would make the file large."""
    kept = {
        name: _number(value) for name, value in metrics.items() if not name.startswith((LAYER_PREFIX, CLASS_PREFIX))
    }
    return record | kept


def _layers(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {
        name.removeprefix(LAYER_PREFIX): _number(value)
        for name, value in metrics.items()
        if name.startswith(LAYER_PREFIX)
    }


def _number(value: float) -> float | None:
    """Round to the precision of a table; NaN becomes None, since JSON has no NaN."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
