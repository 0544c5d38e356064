"""`sparsyedge coordinator run RUN.toml | status RUN_DIR [--json] | metrics RUN_DIR [--out FILE.csv] | stop RUN_DIR`."""

from __future__ import annotations

import argparse
import logging
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from sparsyedge.coordinator.allocator import give_back_large_blocks
from sparsyedge.coordinator.commands import authority_command as authority_cli
from sparsyedge.coordinator.commands import control_command as control_cli
from sparsyedge.coordinator.commands.watch import View, watch
from sparsyedge.coordinator.config import load_run_config
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.observer import LogObserver
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.record.tables import describe_history, describe_run, device_table, meter_line, round_table
from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import RunError, StoreError

__all__ = ["main", "make_parser"]


log = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code; raises SparsyedgeError for an expected failure."""
    arguments = make_parser().parse_args(argv)
    try:
        return _dispatch(arguments)
    except sqlite3.Error as error:
        raise StoreError(
            f"the run store or the ledger cannot be used: {error}; check the disk and its rights"
        ) from error


def _dispatch(arguments: argparse.Namespace) -> int:
    if arguments.command in authority_cli.COMMANDS:
        return authority_cli.main(arguments)
    if arguments.command in control_cli.COMMANDS:
        return control_cli.main(arguments)
    match arguments.command:
        case "run":
            return _run(arguments.config)
        case "status":
            return _status(arguments.run_dir, as_json=arguments.json, watched=arguments.watch)
        case "metrics":
            return _metrics(arguments.run_dir, arguments.out)
        case _:
            return _stop(arguments.run_dir)


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge coordinator", description="Lead a fleet through the rounds of a run.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="lead a run from its first round to its model")
    run.add_argument("config", type=Path, metavar="RUN.toml", help="the run's config, docs/reference/configuration.md")
    status = commands.add_parser("status", help="show how far a run is, and what it cost")
    status.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    control_cli.add_view_options(status)
    metrics = commands.add_parser("metrics", help="print every figure of every round as CSV")
    metrics.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    metrics.add_argument("--out", type=Path, metavar="FILE.csv", help="write there instead")
    stop = commands.add_parser("stop", help="let a run finish after the round that is open")
    stop.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    control_cli.add_commands(commands)
    authority_cli.add_commands(commands)
    return parser


def _run(config_path: Path) -> int:
    # Import here: it pulls in ONNX Runtime, which `status` and `stop` do not need.
    from sparsyedge.coordinator.fleet.broker_access import answering
    from sparsyedge.coordinator.service import prepare
    from sparsyedge.edge.inference.preprocessing import MODEL_NAME

    logs.set_level("info")
    give_back_large_blocks()
    config = load_run_config(config_path)
    coordinator = prepare(config, LogObserver())
    interrupted = False

    def stop() -> None:
        nonlocal interrupted
        interrupted = True
        coordinator.interrupt()

    with _on_signals(stop), answering(config):
        summary = coordinator.run()
    if summary.run.model_sha256:
        log.info("the model is %s/%s (sha256 %s)", summary.run_dir, MODEL_NAME, summary.run.model_sha256)
    log.info("what it took: sparsyedge coordinator status %s", summary.run_dir)
    return EXIT_INTERRUPTED if interrupted else 0


def _status(run_dir: Path, *, as_json: bool, watched: bool) -> int:
    if as_json:
        print(msgspec.json.encode(_summary(run_dir)).decode())
        return 0
    console = Console()

    def look() -> View:
        summary = _summary(run_dir)
        # A new sign of life alone is no reason to print again.
        return View(Group(*_picture(summary)), replace(summary, run=replace(summary.run, seen_at=0.0)))

    if watched:
        watch(console, look)
    console.print(look().picture)
    return 0


def _summary(run_dir: Path) -> RunSummary:
    with closing(Store.open(run_dir)) as store:
        return store.summary()


def _picture(summary: RunSummary) -> Iterator[RenderableType]:
    yield Text(describe_run(summary.run, len(summary.rounds)))
    yield from (Text(line) for line in describe_history(summary))
    if summary.rounds:
        yield round_table(summary.rounds)
    if summary.devices:
        yield device_table(summary.devices)
        yield Text(meter_line(summary.devices))
    for refusal in summary.refusals:
        yield Text(f"refused {refusal.count}x in round {refusal.round} from {refusal.device}: {refusal.reason}")


def _metrics(run_dir: Path, out: Path | None) -> int:
    with closing(Store.open(run_dir)) as store:
        table = as_csv(store)
    if out is None:
        print(table, end="")
        return 0
    try:
        out.write_text(table)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error}; name another file with --out") from error
    return 0


def _stop(run_dir: Path) -> int:
    with closing(Store.open(run_dir)) as store:
        run = store.run()
        if run.state not in ("running", "paused"):
            raise RunError(f"run {run.name} in {run_dir} is {run.state} already; there is nothing to stop")
        store.request_stop()
    _say(f"run {run.name} will finish after the round that is open")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGINT or SIGTERM; the second ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        log.warning("got %s; stopping, the open round is given up", signal.Signals(number).name)
        restore()
        stop()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
