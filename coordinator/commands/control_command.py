"""`sparsyedge coordinator pause RUN_DIR | resume RUN_DIR | devices RUN_DIR [--json | --watch]`."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from sparsyedge.coordinator.commands.devices_view import DeviceView, as_lines, look_at_devices
from sparsyedge.coordinator.commands.live_view import describe_present, look_at_present
from sparsyedge.coordinator.commands.watch import View, watch
from sparsyedge.coordinator.record import run_requests
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.record.tables import describe_run
from sparsyedge.edge.commands.arguments import Parser

__all__ = ["COMMANDS", "add_commands", "add_view_options", "main"]

COMMANDS = ("pause", "resume", "release", "devices")


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add these commands to those of `sparsyedge coordinator`."""
    pause = commands.add_parser("pause", help="complete the round that is open and open no other")
    pause.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    resume = commands.add_parser("resume", help="open rounds again after a pause")
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    release = commands.add_parser("release", help="let a device take part again that was left out for failing")
    release.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    release.add_argument("device", metavar="DEVICE_ID", help="the device's `id`")
    devices = commands.add_parser("devices", help="show who is there, what it has done and what was refused from it")
    devices.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the config's `run_dir`")
    add_view_options(devices)


def add_view_options(parser: Parser) -> None:
    """Add the options of commands that show a run."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON document")
    how.add_argument("--watch", action="store_true", help="draw it again every 2 seconds, until Ctrl-C")


def main(arguments: argparse.Namespace) -> int:
    """Run one of COMMANDS."""
    match arguments.command:
        case "pause":
            print(run_requests.pause(arguments.run_dir))
        case "resume":
            print(run_requests.resume(arguments.run_dir))
        case "release":
            print(run_requests.release(arguments.run_dir, arguments.device))
        case _:
            return _devices(arguments.run_dir, as_json=arguments.json, watched=arguments.watch)
    return 0


def _devices(run_dir: Path, *, as_json: bool, watched: bool) -> int:
    if as_json:
        print(msgspec.json.encode({"devices": [_document(view) for view in _look(run_dir)[1]]}).decode())
        return 0
    console = Console()

    def look() -> View:
        heading, devices, doubt = _look(run_dir)
        lines = [*heading, "", *as_lines(devices, width=console.width), *([doubt] if doubt else [])]
        # A step alone is no reason to print again.
        return View(Text("\n".join(lines)), ([replace(device, activity=None) for device in devices], doubt))

    if watched:
        watch(console, look)
    console.print(look().picture)
    return 0


def _look(run_dir: Path) -> tuple[list[str], tuple[DeviceView, ...], str]:
    with closing(Store.open(run_dir)) as store:
        run = store.run()
        present, activities = look_at_present(run_dir)
        heading = [describe_run(run, store.progress().closed_round)]
        if run.state in ("running", "paused"):
            heading += describe_present(present)
        return heading, *look_at_devices(store, activities)


def _document(view: DeviceView) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(view.member),
        "state": view.attendance,
        "activity": msgspec.to_builtins(view.activity),
    }
