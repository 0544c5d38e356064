"""`sparsyedge coordinator run RUN.toml [--web] | status RUN_DIR | metrics RUN_DIR | stop RUN_DIR`."""

from __future__ import annotations

import argparse
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from sparsyedge.coordinator.allocator import give_back_large_blocks
from sparsyedge.coordinator.commands import authority_command as authority_cli
from sparsyedge.coordinator.commands import backup_command as backup_cli
from sparsyedge.coordinator.commands import control_command as control_cli
from sparsyedge.coordinator.commands import evaluate_command as evaluate_cli
from sparsyedge.coordinator.commands import install_command as install_cli
from sparsyedge.coordinator.commands import rotate_command as rotate_cli
from sparsyedge.coordinator.commands import web_command as web_cli
from sparsyedge.coordinator.commands.live_view import describe_present, look_at_present, subject_of
from sparsyedge.coordinator.commands.watch import View, watch
from sparsyedge.coordinator.config import RunConfig, load_run_config
from sparsyedge.coordinator.record import run_requests
from sparsyedge.coordinator.record.evaluation_tables import describe_evaluation, evaluation_table
from sparsyedge.coordinator.record.live import Present
from sparsyedge.coordinator.record.metrics_csv import as_csv
from sparsyedge.coordinator.record.observer import LogObserver
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.record.tables import describe_history, describe_run, device_table, meter_line, round_table
from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.signals import on_signals
from sparsyedge.edge.device.notify import Supervisor
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
    if arguments.command in web_cli.COMMANDS:
        return web_cli.main(arguments)
    if arguments.command in control_cli.COMMANDS:
        return control_cli.main(arguments)
    if arguments.command in evaluate_cli.COMMANDS:
        return evaluate_cli.main(arguments)
    if arguments.command in install_cli.COMMANDS:
        return install_cli.main(arguments)
    if arguments.command in backup_cli.COMMANDS:
        return backup_cli.main(arguments)
    if arguments.command in rotate_cli.COMMANDS:
        return rotate_cli.main(arguments)
    match arguments.command:
        case "run":
            return _run(arguments)
        case "status":
            return _status(arguments.run_dir, as_json=arguments.json, watched=arguments.watch)
        case "metrics":
            return _metrics(arguments.run_dir, arguments.out)
        case _:
            print(run_requests.stop(arguments.run_dir), flush=True)
            return 0


def make_parser() -> Parser:
    parser = Parser(prog="sparsyedge coordinator", description="Lead a fleet through the rounds of a run.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="lead a run from its first round to its model")
    run.add_argument("config", type=Path, metavar="RUN.toml", help="the run's config, docs/reference/configuration.md")
    run.add_argument(
        "--web",
        nargs="?",
        const=web_cli.DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"show the run in browsers while it lasts (default: {web_cli.DEFAULT_ADDRESS})",
    )
    web_cli.add_page_options(run)
    run.add_argument("--service", action="store_true", help="as a service: a run that is over already is no failure")
    status = commands.add_parser("status", help="show how far a run is, and what it cost")
    status.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    control_cli.add_view_options(status)
    metrics = commands.add_parser("metrics", help="print every figure of every round as CSV")
    metrics.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    metrics.add_argument("--out", type=Path, metavar="FILE.csv", help="write there instead")
    stop = commands.add_parser("stop", help="let a run finish after the round that is open")
    stop.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    control_cli.add_commands(commands)
    web_cli.add_commands(commands)
    evaluate_cli.add_commands(commands)
    install_cli.add_commands(commands)
    backup_cli.add_commands(commands)
    authority_cli.add_commands(commands)
    rotate_cli.add_commands(commands)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    # Import here: it pulls in ONNX Runtime, which `status` and `stop` do not need.
    from sparsyedge.coordinator.authority.beacon import announcing
    from sparsyedge.coordinator.fleet.broker_access import answering, open_authority
    from sparsyedge.coordinator.service import prepare
    from sparsyedge.edge.inference.preprocessing import MODEL_NAME

    logs.set_level("info")
    give_back_large_blocks()
    config = load_run_config(arguments.config)
    if arguments.service and _is_over(config):
        log.info("run %s in %s is over; nothing to do", config.name, config.run_path)
        Supervisor().ready()
        return 0
    page = web_cli.beside(arguments, config)
    coordinator = prepare(config, LogObserver())
    interrupted = False

    def stop() -> None:
        nonlocal interrupted
        interrupted = True
        coordinator.interrupt()

    with (
        on_signals(stop, given_up="the open round is given up"),
        page,
        answering(config),
        announcing(open_authority(config)),
    ):
        summary = coordinator.run()
    if summary.run.model_sha256:
        log.info("the model is %s/%s (sha256 %s)", summary.run_dir, MODEL_NAME, summary.run.model_sha256)
    log.info("what it took: sparsyedge coordinator status %s", summary.run_dir)
    return EXIT_INTERRUPTED if interrupted else 0


def _is_over(config: RunConfig) -> bool:
    """Whether all rounds of the run are closed, or somebody told it to stop; a shutdown does not count."""
    try:
        store = Store.open(config.run_path)
    except RunError:
        return False  # nothing has begun yet
    with closing(store):
        run = store.run()
        is_told = run.state == "stopped" and "stop" in store.requests()
        return run.rounds == config.rounds and (run.state == "finished" or is_told)


def _status(run_dir: Path, *, as_json: bool, watched: bool) -> int:
    if as_json:
        present = _present(run_dir, summary := _summary(run_dir))
        print(msgspec.json.encode({**msgspec.to_builtins(summary), "present": present}).decode())
        return 0
    console = Console()

    def look() -> View:
        summary = _summary(run_dir)
        present = _present(run_dir, summary)
        # A new sign of life alone is no reason to print again.
        facts = replace(summary, run=replace(summary.run, seen_at=0.0)), subject_of(present)
        return View(Group(*_picture(summary, present)), facts)

    if watched:
        watch(console, look)
    console.print(look().picture)
    return 0


def _summary(run_dir: Path) -> RunSummary:
    with closing(Store.open(run_dir)) as store:
        return store.summary()


def _present(run_dir: Path, summary: RunSummary) -> Present | None:
    """Return what a run that is under way is doing."""
    return look_at_present(run_dir)[0] if summary.run.state in ("running", "paused") else None


def _picture(summary: RunSummary, present: Present | None) -> Iterator[RenderableType]:
    yield Text(describe_run(summary.run, len(summary.rounds)))
    yield from (Text(line) for line in describe_present(present))
    yield from (Text(line) for line in describe_history(summary))
    if summary.rounds:
        yield round_table(summary.rounds)
    if summary.on_devices:
        yield evaluation_table(summary.on_devices)
    yield from (Text(describe_evaluation(found)) for found in summary.evaluations)
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
