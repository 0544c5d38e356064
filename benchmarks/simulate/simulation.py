"""One federated run on this machine: deals out the data, simulates the devices and runs the real coordinator."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.benchmarks.common.processes import watched
from sparsyedge.benchmarks.simulate.agents import started_agents
from sparsyedge.benchmarks.simulate.boards import boards_of
from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig
from sparsyedge.benchmarks.simulate.data_used import keep_to_data
from sparsyedge.benchmarks.simulate.engine import Engine, check_engine, started_workers
from sparsyedge.benchmarks.simulate.hub import Drop, HeldClock, Hub
from sparsyedge.benchmarks.simulate.local_mosquitto import started_mosquitto
from sparsyedge.benchmarks.simulate.missing_artifacts import ensure_artifacts
from sparsyedge.benchmarks.simulate.shares import accuracy_by_device, label_mixes, told_classes, write_shares
from sparsyedge.benchmarks.simulate.simulated_device import Backend, Setup
from sparsyedge.benchmarks.simulate.validation import split_validation
from sparsyedge.benchmarks.simulate.workers import core_count
from sparsyedge.coordinator.config import check_run_config
from sparsyedge.coordinator.fleet.plan import check_selection
from sparsyedge.coordinator.record.observer import Observer, SilentObserver
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.resume import check_same_run, finished_text
from sparsyedge.coordinator.service import Coordinator, prepare
from sparsyedge.edge.data import Dataset, Samples, check_classes, load
from sparsyedge.edge.data.classes import fit_to_model
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.artifacts import MANIFEST_NAME, Artifacts
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.storage import sha256_file

__all__ = ["LinkKind", "simulate"]

LinkKind = Literal["memory", "mqtt"]
# Devices share a machine that may be slow; a round should still wait for all of them.
PATIENCE_S = 7 * 86_400.0


def simulate(
    config: SimulatedRunConfig,
    *,
    link: LinkKind = "memory",
    workers: int | None = None,
    engine: Engine | None = None,
    drop: Drop | None = None,
    backend: Backend = "ort",
    hostile: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    longer: bool = False,
) -> RunSummary:
    """Run to the end, resuming if the run directory holds a started run; returns the record of the run.

    `config.simulation` describes the devices. `drop(round, device)` says which devices take a task and then disappear;
    their round closes at its deadline, without real waiting. Needs `link="memory"`. `backend` chooses what runs the
    training steps. With `longer`, an existing run may continue with another number of rounds; otherwise it is refused,
    because its figures would fit neither number. `hostile` says which devices attack the run, and how
    (benchmarks/simulate/hostile_members.py). `engine` says where devices train; the model is the same.
    """
    simulation = config.simulation
    if simulation is None:
        raise ConfigError("key `simulation` is missing; add a table [simulation] with `devices` to the run's config")
    if drop is not None and link != "memory":
        raise ConfigError("devices can be dropped with link `memory` alone")
    if workers is not None and workers < 1:
        raise ConfigError(f"`workers` has value {workers}; at least 1 is needed")
    engine = engine or Engine()
    check_engine(engine, link=link)
    config = _complete(config, simulation, link)
    check_run_config(config)
    observer = observer or SilentObserver()
    if (finished := _finished(config, longer=longer)) is not None:
        observer.note(finished_text(config))
        return finished
    dataset = _load_data(config, simulation)
    keep_to_data(config.run_path, dataset, begun=Store.exists(config.run_path))
    artifacts = ensure_artifacts(config, dataset)
    check_selection(config.selection, artifacts.manifest)
    _check_costs(config, simulation)
    dataset, final_test = _set_aside(dataset, simulation)
    train = fit_to_model(dataset.train, dataset.names, artifacts.manifest.form, owner=f"data set {dataset.name}")
    with tempfile.TemporaryDirectory(prefix="sparsyedge-") as scratch:
        samples = write_shares(
            train,
            Path(scratch),
            devices=simulation.devices,
            alpha=simulation.alpha,
            seed=simulation.partition_seed,
        )
        is_classes = train.task == "classes"
        _install(artifacts, config.run_path / "devices", tuple(samples))
        setup = Setup(
            fleet=config.fleet,
            devices_dir=str((config.run_path / "devices").resolve()),
            shares_dir=scratch,
            threads=config.threads,
            meter=simulation.meter,
            runtime=simulation.runtime,
            backend=backend,
            hostile=dict(hostile or {}),
            boards=boards_of(samples, simulation.boards, seed=simulation.partition_seed),
            board_costs=simulation.boards,
        )
        make_coordinator = partial(
            prepare,
            observer=observer,
            extend_evaluation=partial(accuracy_by_device, mixes=label_mixes(Path(scratch))) if is_classes else None,
            takes_turns=True,
            dataset=dataset,
            final_test=final_test,
            # The workers wait meanwhile, unless the evaluation lags behind.
            evaluated_at_once=1 if config.eval_may_lag else min(workers or core_count(), core_count()),
        )
        if link == "mqtt":
            return _over_mqtt(config, setup, samples, make_coordinator, workers=workers)
        told = told_classes(Path(scratch), artifacts.manifest.classes) if config.selection == "balanced" else None
        return _in_memory(
            config, setup, samples, make_coordinator, engine=engine, workers=workers, drop=drop, told=told
        )


def _over_mqtt(
    config: SimulatedRunConfig,
    setup: Setup,
    samples: Mapping[str, int],
    make_coordinator: Callable[..., Coordinator],
    *,
    workers: int | None,
) -> RunSummary:
    """Run with a Mosquitto of its own and a connection per device."""
    with ExitStack() as stack:
        broker = stack.enter_context(started_mosquitto(Path(setup.shares_dir)))
        count = min(workers or core_count(), config.cohort_size)
        hosts = stack.enter_context(started_agents(count, setup, devices=tuple(samples), broker=broker))
        coordinator = make_coordinator(msgspec.structs.replace(config, broker=broker, blobs=None))
        # Otherwise the run would wait until its deadline for the devices of a dead process.
        stack.enter_context(watched(lambda: hosts.dead, coordinator.interrupt))
        summary = coordinator.run()
        hosts.check()
        return summary


def _in_memory(
    config: SimulatedRunConfig,
    setup: Setup,
    samples: Mapping[str, int],
    make_coordinator: Callable[..., Coordinator],
    *,
    engine: Engine,
    workers: int | None,
    drop: Drop | None,
    told: Mapping[str, tuple[int, ...]] | None,
) -> RunSummary:
    """Run with a hub in place of the broker, which gives devices turns on workers."""
    clock = HeldClock()
    with started_workers(engine, setup, asked=workers, at_most=config.cohort_size) as pool:
        hub = Hub(
            Topics(config.fleet),
            samples,
            devices_dir=config.run_path / "devices",
            workers=pool,
            clock=clock,
            drop=drop,
            classes=told,
        )
        return make_coordinator(config, connect=lambda: hub, clock=clock).run()


def _set_aside(dataset: Dataset, simulation: SimulationConfig) -> tuple[Dataset, Samples | None]:
    """The data set with its validation samples in place of the test part, and that part; unchanged without any."""
    if not simulation.validation:
        return dataset, None
    rest, validation = split_validation(
        dataset, simulation.validation, seed=simulation.partition_seed, devices=simulation.devices
    )
    return replace(rest, test=validation), dataset.test


def _complete(config: SimulatedRunConfig, simulation: SimulationConfig, link: LinkKind) -> SimulatedRunConfig:
    """The config adjusted for simulation: round 1 waits for all devices, so cohorts are drawn from all."""
    if config.cohort_size > simulation.devices:
        raise ConfigError(
            f"key `cohort_size` has value {config.cohort_size}: there are `simulation.devices` = {simulation.devices}; "
            f"allowed are 1 to {simulation.devices}"
        )
    if simulation.sampling_seed is not None and config.cohort_size == simulation.devices:
        raise ConfigError(
            f"key `simulation.sampling_seed` has value {simulation.sampling_seed}: with `cohort_size` = "
            f"`simulation.devices` = {simulation.devices} all devices take part in every round, so there is nothing "
            f"to sample; lower `cohort_size` or remove the key"
        )
    deadline_s = config.deadline_s if link == "memory" else PATIENCE_S
    return msgspec.structs.replace(config, min_devices=simulation.devices, deadline_s=deadline_s)


def _check_costs(config: SimulatedRunConfig, simulation: SimulationConfig) -> None:
    """Raise ConfigError for cohorts that depend on figures which nothing declares: this machine's would be no run's."""
    boards = simulation.boards.values()
    missing = {
        "energy": "`step_j`" if any(board.step_j is None for board in boards) or not boards else "",
        "fast": "" if boards else "`step_s`",
    }.get(config.selection)
    if missing:
        raise ConfigError(
            f'key `selection` has value "{config.selection}": simulated devices share this machine, so what it takes '
            f"says nothing of theirs; declare boards with {missing} in [simulation.boards.NAME], or use another "
            f"`selection`"
        )


def _load_data(config: SimulatedRunConfig, simulation: SimulationConfig) -> Dataset:
    """The run's data set; it must have at least one sample per device."""
    dataset = load(config.dataset, config.data_path)
    check_classes(dataset)
    if simulation.devices > len(dataset.train):
        raise ConfigError(
            f"key `simulation.devices` has value {simulation.devices}: data set {dataset.name} has "
            f"{len(dataset.train)} samples to share out; allowed are 1 to {len(dataset.train)}"
        )
    return dataset


def _finished(config: SimulatedRunConfig, *, longer: bool) -> RunSummary | None:
    """The record of the run if it is over; raises RunError if the directory belongs to a different run."""
    if not Store.exists(config.run_path):
        return None
    with closing(Store.open(config.run_path)) as store:
        before = check_same_run(config, store, longer=longer)
        return store.summary() if store.run().state == "finished" and before.rounds == config.rounds else None


def _install(artifacts: Artifacts, devices_dir: Path, devices: tuple[str, ...]) -> None:
    """Give every device the artifacts as if it had fetched them; all share one copy on disk."""
    manifest = sha256_file(artifacts.directory / MANIFEST_NAME)
    shared = devices_dir / "artifacts"
    folder = shared / manifest
    folder.mkdir(parents=True, exist_ok=True)
    for name in (MANIFEST_NAME, *(file.name for file in artifacts.manifest.files.values())):
        if not (folder / name).is_file():
            shutil.copyfile(artifacts.directory / name, folder / name)
    for device in devices:
        link = devices_dir / device / "artifacts"
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(Path("..") / "artifacts", target_is_directory=True)
