"""`sparsyedge demo`: a whole federated run on this machine, with a broker, a coordinator and real device processes."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from sparsyedge.benchmarks.common.number_arguments import positive, positive_number
from sparsyedge.benchmarks.common.presets import ALPHA, PRESETS
from sparsyedge.benchmarks.common.progress import LiveProgress
from sparsyedge.benchmarks.common.run_summary import as_json, print_summary
from sparsyedge.benchmarks.demo.broker import LocalBroker
from sparsyedge.benchmarks.demo.device_processes import Fleet
from sparsyedge.coordinator.config import LearningRateConfig, RunConfig
from sparsyedge.coordinator.record.observer import Observer, SilentObserver
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.service import prepare
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.config import BrokerConfig, DataConfig, DeviceConfig, PartitionConfig
from sparsyedge.edge.data import DATASETS
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.model_spec import ModelSpec

__all__ = ["main", "make_parser"]

SPARSITY = 0.95
BETA = 1.25


def main(argv: list[str]) -> int:
    """The command line of `sparsyedge demo`."""
    arguments = make_parser().parse_args(argv)
    console = Console(stderr=arguments.json)
    run_dir = arguments.run_dir or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    if run_dir.exists() and any(run_dir.iterdir()):
        raise ConfigError(f"run directory {run_dir} is not empty; choose another with --run-dir")
    if arguments.json:
        summary = _run(arguments, run_dir, console, SilentObserver())
        print(as_json(summary))
    else:
        with LiveProgress(console) as progress:
            summary = _run(arguments, run_dir, console, progress)
        print_summary(console, summary)
    return 0


def _run(arguments: argparse.Namespace, run_dir: Path, console: Console, observer: Observer) -> RunSummary:
    """Export, start everything, and finish the run; leaves no process behind."""
    spec = ModelSpec.for_data("resnet18", arguments.width, DATASETS[arguments.dataset].form)
    method = make_method("sparsyfed", sparsity=SPARSITY, beta=BETA)
    console.print(f"exporting ResNet-18 width {spec.width} and comparing it with torch ...")
    artifacts, parity = export_model(spec, method, run_dir / "artifacts", seed=arguments.seed)
    console.print(f"artifacts agree with torch to {parity.gradient:.0e} (gradients, relative L2)")
    with ExitStack() as stack:
        broker = stack.enter_context(LocalBroker())
        address = BrokerConfig(host=broker.host, port=broker.port)
        fleet = stack.enter_context(Fleet(_device_configs(arguments, address, run_dir), run_dir / "devices"))
        console.print(f"{len(fleet.devices)} devices started, broker on {broker.host}:{broker.port}")
        coordinator = prepare(_run_config(arguments, address, run_dir, artifacts.directory), observer)
        stack.enter_context(fleet.watched(coordinator.interrupt))
        summary = coordinator.run()
        fleet.check()
        return summary


def _run_config(arguments: argparse.Namespace, broker: BrokerConfig, run_dir: Path, artifacts: Path) -> RunConfig:
    preset = PRESETS[arguments.dataset]
    start = arguments.learning_rate or preset.learning_rate
    return RunConfig(
        name="demo",
        fleet="demo",
        artifacts=str(artifacts),
        run_dir=str(run_dir),
        dataset=arguments.dataset,
        data_dir=arguments.data_dir,
        rounds=arguments.rounds or preset.rounds,
        epochs=arguments.epochs or preset.epochs,
        cohort_size=arguments.devices,
        learning_rate=LearningRateConfig(start=start, end=min(start, preset.last_learning_rate)),
        # Generous, because a slow machine is not a fault; we notice a dead device by its process.
        deadline_s=3600.0,
        seed=arguments.seed,
        broker=broker,
    )


def _device_configs(arguments: argparse.Namespace, broker: BrokerConfig, run_dir: Path) -> list[DeviceConfig]:
    return [
        DeviceConfig(
            id=f"device-{index}",
            fleet="demo",
            work_dir=str((run_dir / "devices" / f"device-{index}").resolve()),
            broker=broker,
            threads=1,
            # Several devices share this machine: a sensor would charge each device for the others' work.
            meter="cpu-model",
            data=DataConfig(
                dataset=arguments.dataset,
                # Absolute, because the device reads its config in another folder.
                data_dir=None if arguments.data_dir is None else str(Path(arguments.data_dir).expanduser().absolute()),
                partition=PartitionConfig(devices=arguments.devices, index=index, alpha=ALPHA),
            ),
        )
        for index in range(arguments.devices)
    ]


def make_parser() -> Parser:
    parser = Parser(
        prog="sparsyedge demo",
        description="Train ResNet-18 with SparsyFed on devices of this machine, over MQTT, and show what it took.",
    )
    parser.add_argument("--dataset", choices=[name for name in DATASETS if name in PRESETS], default="digits")
    parser.add_argument("--data-dir", help="where the data set is (default: $SPARSYEDGE_DATA, then the user's cache)")
    parser.add_argument("--width", type=positive, default=16, help="channels of the first stage (default: %(default)s)")
    parser.add_argument("--devices", type=positive, default=4, help="device processes (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, help="rounds (default: the data set's preset)")
    parser.add_argument("--epochs", type=positive, help="local epochs per round (default: the data set's preset)")
    parser.add_argument(
        "--learning-rate", type=positive_number, help="in the first round (default: the data set's preset)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same model (default: %(default)s)")
    parser.add_argument("--run-dir", type=Path, help="where everything is kept (default: runs/demo-DATE-TIME)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser
