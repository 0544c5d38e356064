"""`sparsyedge coordinator run RUN.toml | status RUN_DIR [--json] | metrics RUN_DIR [--out FILE.csv] | stop RUN_DIR`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from sparsyedge.coordinator import authority_cli, control_cli
from sparsyedge.coordinator.config import load_run_config
from sparsyedge.coordinator.memory import give_back_large_blocks
from sparsyedge.coordinator.metrics_csv import as_csv
from sparsyedge.coordinator.records import RoundRecord, RunSummary
from sparsyedge.coordinator.store import Store
from sparsyedge.coordinator.tables import device_table, meter_line, round_table
from sparsyedge.edge.errors import RunError

__all__ = ["LineObserver", "main"]


EXIT_INTERRUPTED = 130
SHOWN = 5
"""Devices that one line names."""


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code; raises SparsyedgeError for a fault that we can name."""
    arguments = _parser().parse_args(argv)
    if arguments.command in authority_cli.COMMANDS:
        return authority_cli.main(arguments)
    if arguments.command in control_cli.COMMANDS:
        return control_cli.main(arguments)
    match arguments.command:
        case "run":
            return _run(arguments.config)
        case "status":
            return _status(arguments.run_dir, as_json=arguments.json)
        case "metrics":
            return _metrics(arguments.run_dir, arguments.out)
        case _:
            return _stop(arguments.run_dir)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsyedge coordinator", description="Lead a fleet through the rounds of a run."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="lead a run from its first round to its model")
    run.add_argument("config", type=Path, metavar="RUN.toml")
    status = commands.add_parser("status", help="show how far a run is, and what it cost")
    status.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    status.add_argument("--json", action="store_true", help="print one JSON document")
    metrics = commands.add_parser("metrics", help="print every figure of every round as CSV")
    metrics.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    metrics.add_argument("--out", type=Path, metavar="FILE.csv", help="write there instead")
    stop = commands.add_parser("stop", help="let a run finish after the round that is open")
    stop.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    control_cli.add_commands(commands)
    authority_cli.add_commands(commands)
    return parser


def _run(config_path: Path) -> int:
    # Here, because it brings ONNX Runtime along, which `status` and `stop` can do without.
    from sparsyedge.coordinator.access import answering
    from sparsyedge.coordinator.service import prepare

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    give_back_large_blocks()
    config = load_run_config(config_path)
    coordinator = prepare(config, LineObserver())
    interrupted = False

    def stop() -> None:
        nonlocal interrupted
        interrupted = True
        coordinator.interrupt()

    with _on_signals(stop), answering(config):
        summary = coordinator.run()
    _say(f"run directory: {summary.run_dir}")
    if summary.run.model_sha256:
        _say(f"model.onnx:    sha256 {summary.run.model_sha256}")
    return EXIT_INTERRUPTED if interrupted else 0


def _status(run_dir: Path, *, as_json: bool) -> int:
    with closing(Store.open(run_dir)) as store:
        summary = store.summary()
    if as_json:
        print(msgspec.json.encode(summary).decode())
        return 0
    console = Console()
    for line in _describe_run(summary):
        console.print(line, highlight=False, markup=False)
    if summary.rounds:
        console.print(round_table(summary.rounds))
    if summary.devices:
        console.print(device_table(summary.devices))
        console.print(meter_line(summary.devices), highlight=False, markup=False)
    for refusal in summary.refusals:
        console.print(
            f"refused {refusal.count}x in round {refusal.round} from {refusal.device}: {refusal.reason}",
            highlight=False,
            markup=False,
        )
    return 0


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


def _optional(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _describe_run(summary: RunSummary) -> Iterator[str]:
    run = summary.run
    line = f"run {run.name} of fleet {run.fleet}: {run.state}, {len(summary.rounds)} of {run.rounds} rounds closed"
    if run.state in ("running", "paused"):
        yield f"{line}; process {run.pid} last seen {max(0.0, time.time() - run.seen_at):.0f} s ago"
    else:
        yield f"{line}; {run.reason}" if run.reason else line
    if run.began_from:
        yield f"began from {run.began_from}"
    for before, after in pairwise(summary.stretches):
        yield f"from round {after.first_round} on: {after.rounds} rounds in all, planned were {before.rounds}"


def _some(names: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


class LineObserver:
    """Prints one line per event."""

    def note(self, sentence: str) -> None:
        _say(sentence)

    def waiting(self, *, round_number: int, online: int, needed: int, unfit: Mapping[str, str]) -> None:
        besides = f"; unfit: {_some(sorted(unfit))}" if unfit else ""
        _say(f"round {round_number}: waiting for devices, {online} of {needed} ready{besides}")

    def device_unfit(self, *, device: str, reason: str) -> None:
        _say(f"device {device} does not train: {reason}")

    def member_replaced(self, *, round_number: int, device: str, substitute: str) -> None:
        _say(f"round {round_number}: {substitute} takes the place of {device}")

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        _say(f"round {round_number} of {rounds}: open for {len(cohort)} devices, learning rate {learning_rate:.4f}")

    def round_resumed(self, *, round_number: int, rounds: int, accepted: int, cohort: tuple[str, ...]) -> None:
        _say(f"round {round_number} of {rounds}: goes on, {accepted} of {len(cohort)} updates are in")

    def round_extended(self, *, round_number: int, cohort: tuple[str, ...], extension: int) -> None:
        _say(f"round {round_number}: too few updates at the deadline, extended ({extension}) for {len(cohort)} devices")

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        _say(f"round {round_number}: update of {device} accepted, {update_bytes} bytes ({accepted} of {cohort})")

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        _say(f"round {round_number}: refused from {device}: {reason}")

    def device_quarantined(self, *, device: str, until_round: int, reason: str) -> None:
        _say(
            f"device {device} is left out until round {until_round}: {reason}; "
            f"`sparsyedge coordinator release` lets it in earlier"
            if until_round
            else f"device {device} is out of quarantine"
        )

    def awaiting(self, *, round_number: int, awaited: Mapping[str, str], left_s: float) -> None:
        names = _some([f"{device} ({doing})" for device, doing in sorted(awaited.items())])
        _say(f"round {round_number}: waiting for {names}, for {max(0.0, left_s) / 60:.0f} min at most")

    def round_closed(self, record: RoundRecord) -> None:
        accuracy = _optional(record.test_accuracy, "{:.2%}")
        _say(
            f"round {record.round}: closed with {record.updates} updates, accuracy {accuracy}, "
            f"sparsity {record.global_sparsity:.2%}, {record.bytes_up} bytes up, {record.seconds:.1f} s"
        )

    def run_ended(self, *, state: str, reason: str) -> None:
        _say(f"run {state}")


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGINT or SIGTERM; the second ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        print(f"got {signal.Signals(number).name}; stopping, the open round is given up", file=sys.stderr, flush=True)
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
