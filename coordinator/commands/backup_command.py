"""`sparsyedge coordinator backup OUT [--fleet DIR] [RUN_DIR...] | restore BACKUP DIR`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from sparsyedge.coordinator.backup import make_backup, restore_backup
from sparsyedge.edge.commands.arguments import Parser

__all__ = ["COMMANDS", "add_commands", "main"]

COMMANDS = ("backup", "restore")


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add these commands to those of `sparsyedge coordinator`."""
    backup = commands.add_parser("backup", help="copy a fleet's authority and runs into one file, also under way")
    backup.add_argument("out", type=Path, metavar="OUT", help="the file to make; it holds private keys")
    backup.add_argument("runs", type=Path, metavar="RUN_DIR", nargs="*", help="a run's `run_dir`")
    backup.add_argument("--fleet", type=Path, metavar="DIR", help="the folder of `coordinator init`")
    restore = commands.add_parser("restore", help="unpack a backup, with a run file for each run to go on")
    restore.add_argument("backup", type=Path, metavar="BACKUP", help="the file of `coordinator backup`")
    restore.add_argument("into", type=Path, metavar="DIR", help="a folder that is absent or empty")


def main(arguments: argparse.Namespace) -> int:
    """Run one of COMMANDS."""
    if arguments.command == "backup":
        return _backup(arguments.out, arguments.fleet, tuple(arguments.runs))
    return _restore(arguments.backup, arguments.into)


def _backup(out: Path, fleet: Path | None, runs: tuple[Path, ...]) -> int:
    contents = make_backup(out, fleet=fleet, run_dirs=runs)
    parts = [f"fleet {contents.fleet}"] if contents.fleet else []
    parts += [f"run {run.name} after round {run.closed_round}" for run in contents.runs]
    print(f"{out}: {', '.join(parts)}; {out.stat().st_size / 1e6:.1f} MB")
    print("it holds private keys, unencrypted: whoever can read it can lead the fleet, so keep it where you keep keys")
    return 0


def _restore(backup: Path, into: Path) -> int:
    contents, files = restore_backup(backup, into)
    made = datetime.fromtimestamp(contents.made_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    print(f"restored what {contents.software} backed up on {made}")
    if contents.fleet:
        print(f"fleet {contents.fleet}: start its broker with `sparsyedge coordinator broker {into / 'fleet'}`")
    for run, file in zip(contents.runs, files, strict=True):
        print(f"run {run.name}, {run.closed_round} rounds closed: `sparsyedge coordinator run {file}` goes on with it")
    if contents.fleet and files:
        print(
            "if devices have seen later rounds they refuse these as replays; certify the run anew first: "
            f"`sparsyedge coordinator sign --dir {into / 'fleet'} --run RUN.toml`"
        )
    return 0
