"""`sparsyedge coordinator evaluate RUN_DIR [--json]`: have the fleet evaluate the run's model on its own samples."""

from __future__ import annotations

import argparse
import logging
import time
from contextlib import closing
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from sparsyedge.coordinator.fleet.lock import is_led
from sparsyedge.coordinator.record.device_evaluations import DeviceEvaluation, EvaluationRound
from sparsyedge.coordinator.record.evaluation_tables import describe_evaluation, device_evaluation_table
from sparsyedge.coordinator.record.observer import LogObserver
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.resume import recorded_config
from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.signals import on_signals
from sparsyedge.edge.errors import RunError

__all__ = ["COMMANDS", "add_commands", "main"]

log = logging.getLogger(__name__)

COMMANDS = ("evaluate",)
POLL_S = 0.5
REMIND_S = 30.0


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add this command to those of `sparsyedge coordinator`."""
    evaluate = commands.add_parser("evaluate", help="have the devices evaluate the model on their own samples")
    evaluate.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    evaluate.add_argument("--json", action="store_true", help="print one JSON document")


def main(arguments: argparse.Namespace) -> int:
    """Ask the run's coordinator for an evaluation round, or lead one if there is none."""
    run_dir: Path = arguments.run_dir
    logs.set_level("info")
    found = None
    with closing(Store.open(run_dir)) as store:
        if is_led(run_dir):
            found = _ask(store, run_dir)
    if found is None:
        found = _lead(run_dir)
    with closing(Store.open(run_dir)) as store:
        _print(found, store.device_evaluations(evaluation=found.number), as_json=arguments.json)
    return 0


def _ask(store: Store, run_dir: Path) -> EvaluationRound | None:
    """Leave a request for the coordinator and wait until it has an answer; None if it left before it took that up."""
    before = max((each.number for each in store.evaluation_rounds()), default=0)
    store.request_evaluation()
    log.info("asked for an evaluation round; it comes when the open round is closed")
    reminded_s = time.monotonic()
    while True:
        led = is_led(run_dir)
        found = next((each for each in store.evaluation_rounds() if each.number > before), None)
        if found is not None and found.ended_at is not None:
            return found
        if not led and found is not None:
            raise RunError(f"the coordinator of the run in {run_dir} ended in evaluation {found.number}; ask again")
        if not led:
            store.drop_evaluation_requests()
            return None
        if time.monotonic() - reminded_s > REMIND_S:
            reminded_s = time.monotonic()
            log.info("waiting: %s", _waits_for(store, found))
        time.sleep(POLL_S)


def _waits_for(store: Store, found: EvaluationRound | None) -> str:
    if found is not None:
        answered = len(store.device_evaluations(evaluation=found.number))
        return f"evaluation {found.number} has {answered} of {found.asked} answers"
    opened = store.progress().open
    if opened is None:
        return "the coordinator is between two rounds"
    return f"round {opened.round} has {len(opened.accepted)} of {len(opened.cohort)} updates"


def _lead(run_dir: Path) -> EvaluationRound:
    # Import here: it pulls in ONNX Runtime, which asking does not need.
    from sparsyedge.coordinator.fleet.broker_access import answering
    from sparsyedge.coordinator.service import prepare

    with closing(Store.open(run_dir)) as store:
        config = recorded_config(store, run_dir)
    coordinator = prepare(config, LogObserver())
    given_up = "the evaluation ends with the answers that are in"
    with on_signals(coordinator.interrupt, given_up=given_up), answering(config):
        return coordinator.evaluate()


def _print(found: EvaluationRound, devices: tuple[DeviceEvaluation, ...], *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"evaluation": found, "devices": devices}).decode())
        return
    console = Console()
    console.print(Text(describe_evaluation(found)))
    if devices:
        console.print(device_evaluation_table(devices))
