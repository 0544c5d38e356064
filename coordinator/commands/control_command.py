"""`sparsyedge coordinator pause RUN_DIR | resume RUN_DIR | devices RUN_DIR [--json | --watch]`."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from sparsyedge.coordinator.commands.devices_view import DeviceView, as_lines, look_at_devices
from sparsyedge.coordinator.commands.watch import View, watch
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.record.tables import describe_run
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import RunError

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
            return _pause(arguments.run_dir)
        case "resume":
            return _resume(arguments.run_dir)
        case "release":
            return _release(arguments.run_dir, arguments.device)
        case _:
            return _devices(arguments.run_dir, as_json=arguments.json, watched=arguments.watch)


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


def _release(run_dir: Path, device: str) -> int:
    with closing(Store.open(run_dir)) as store:
        left_out = store.quarantines()
        if device not in left_out:
            known = f"left out are {', '.join(sorted(left_out))}" if left_out else "nobody is left out"
            raise RunError(f"device {device!r} of the run in {run_dir} is not in quarantine; {known}")
        store.request_release(device)
    print(f"device {device} may take part again")
    return 0


def _devices(run_dir: Path, *, as_json: bool, watched: bool) -> int:
    if as_json:
        print(msgspec.json.encode({"devices": [_document(view) for view in _look(run_dir)[1]]}).decode())
        return 0
    console = Console()

    def look() -> View:
        heading, devices, doubt = _look(run_dir)
        lines = [heading, "", *as_lines(devices, width=console.width), *([doubt] if doubt else [])]
        return View(Text("\n".join(lines)), (devices, doubt))

    if watched:
        watch(console, look)
    console.print(look().picture)
    return 0


def _look(run_dir: Path) -> tuple[str, tuple[DeviceView, ...], str]:
    with closing(Store.open(run_dir)) as store:
        return describe_run(store.run(), store.progress().closed_round), *look_at_devices(store)


def _document(view: DeviceView) -> dict[str, Any]:
    return {**msgspec.to_builtins(view.member), "state": view.attendance}
