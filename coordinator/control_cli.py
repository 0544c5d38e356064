"""`sparsyedge coordinator pause RUN_DIR | resume RUN_DIR | devices RUN_DIR [--json]`."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from sparsyedge.coordinator.records import AdjustmentRecord, MemberRecord, RefusalRecord
from sparsyedge.coordinator.store import Store
from sparsyedge.edge.energy import joules_text
from sparsyedge.edge.errors import RunError

__all__ = ["COMMANDS", "add_commands", "main"]

COMMANDS = ("pause", "resume", "devices")


def add_commands(commands: Any) -> None:
    """Add these commands to those of `sparsyedge coordinator`."""
    pause = commands.add_parser("pause", help="complete the round that is open and open no other")
    pause.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    resume = commands.add_parser("resume", help="open rounds again after a pause")
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    devices = commands.add_parser("devices", help="show who is there, what it has done and what was refused from it")
    devices.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    devices.add_argument("--json", action="store_true", help="print one JSON document")


def main(arguments: argparse.Namespace) -> int:
    """Run one of COMMANDS."""
    match arguments.command:
        case "pause":
            return _pause(arguments.run_dir)
        case "resume":
            return _resume(arguments.run_dir)
        case _:
            return _devices(arguments.run_dir, as_json=arguments.json)


def _pause(run_dir: Path) -> int:
    with closing(Store.open(run_dir)) as store:
        run = store.run()
        if run.state not in ("running", "paused"):
            raise RunError(f"run {run.name} in {run_dir} is {run.state} already; there is nothing to pause")
        store.request_pause()
    print(f"run {run.name} will open no round after the one that is open; go on with `coordinator resume {run_dir}`")
    return 0


def _resume(run_dir: Path) -> int:
    with closing(Store.open(run_dir)) as store:
        run = store.run()
        if "pause" not in store.requests():
            raise RunError(
                f"run {run.name} in {run_dir} is not paused; a run whose coordinator has ended goes on with "
                f"`sparsyedge coordinator run RUN.toml`"
            )
        store.request_resume()
    print(f"run {run.name} opens rounds again")
    return 0


def _devices(run_dir: Path, *, as_json: bool) -> int:
    with closing(Store.open(run_dir)) as store:
        members = store.members()
    if as_json:
        print(msgspec.json.encode({"devices": members}).decode())
        return 0
    console = Console()
    console.print(_table(members))
    for member in members:
        for refusal in member.refusals:
            console.print(_refusal(refusal), highlight=False, markup=False)
        if notable := [adjustment for adjustment in member.adjustments if adjustment.notable]:
            console.print(_adjustments(notable), highlight=False, markup=False)
    return 0


def _table(members: tuple[MemberRecord, ...]) -> Table:
    table = Table(title="Devices")
    table.add_column("device")
    for name in ("state", "last seen", "last round", "updates", "seconds", "down", "up", "energy", "refused"):
        table.add_column(name, justify="right")
    for member in members:
        table.add_row(
            member.device,
            "online" if member.online else "offline",
            "-" if member.seen_at is None else f"{max(0.0, time.time() - member.seen_at):.0f} s ago",
            "-" if member.last_round is None else str(member.last_round),
            str(member.updates),
            f"{member.seconds:.1f}",
            f"{member.bytes_down / 1e6:.2f} MB",
            f"{member.bytes_up / 1e6:.2f} MB",
            "-" if member.joules is None else joules_text(member.joules, member.energy_kind),
            str(sum(refusal.count for refusal in member.refusals)),
        )
    return table


def _refusal(refusal: RefusalRecord) -> str:
    return f"refused {refusal.count}x in round {refusal.round} from {refusal.device}: {refusal.reason}"


def _adjustments(found: list[AdjustmentRecord]) -> str:
    last = found[-1]
    return f"counted for less in {len(found)} rounds: {last.device}; the last time, in round {last.round}: {last}"
