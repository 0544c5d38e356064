"""`sparsyedge fleet update|status|halt|rollback`: upgrades of a secured fleet over the air."""

from __future__ import annotations

import argparse
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from sparsyedge.coordinator.authority import op_libraries as libraries
from sparsyedge.coordinator.authority.authority import SETTINGS_NAME, Authority
from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.commands.fleet_view import as_lines, heading, looked_at
from sparsyedge.coordinator.config import load_run_config
from sparsyedge.coordinator.fleet.blob_store import BlobStore, probe
from sparsyedge.coordinator.rollout.bundle import keep_files, read_wheelhouse
from sparsyedge.coordinator.rollout.driver import DAY_S, Driver
from sparsyedge.coordinator.rollout.plan import Halt, Progress, Return, Rollout, unreached
from sparsyedge.coordinator.rollout.rollout_file import Request, RolloutFile
from sparsyedge.edge.commands import logs
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.commands.signals import on_signals
from sparsyedge.edge.errors import ConfigError, RunError, SecurityError, StoreError
from sparsyedge.edge.protocol.releases import Release

__all__ = ["main", "make_parser"]

DEFAULT_FOLDER = Path("fleet")
CANARIES = 1
LIMIT_S = 3600.0
EXPIRES_DAYS = 14.0
EXIT_FAILED = 1


def main(argv: list[str]) -> int:
    """Run the subcommand and return its exit code; raises SparsyedgeError for an expected failure."""
    arguments = make_parser().parse_args(argv)
    logs.set_level("info")
    authority = _open_authority(arguments.dir)
    file = RolloutFile(authority.folder)
    try:
        match arguments.command:
            case "update":
                return _update(authority, file, arguments)
            case "status":
                return _status(authority, file, as_json=arguments.json)
            case "halt":
                return _ask(authority, file, "halt")
            case _:
                return _ask(authority, file, "return")
    except sqlite3.Error as error:
        raise StoreError(f"the authority's ledger cannot be used: {error}; check the disk and its rights") from error


def make_parser() -> Parser:
    """The options of `sparsyedge fleet`."""
    parser = Parser(prog="sparsyedge fleet", description="Upgrade the devices of a secured fleet over the air.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    update = commands.add_parser("update", help="install a wheelhouse on all devices, a few first; goes on if cut")
    update.add_argument(
        "--wheelhouse", type=Path, metavar="DIR", help="of `flash wheelhouse`; leave it out to go on with a rollout"
    )
    update.add_argument(
        "--canary",
        default=str(CANARIES),
        metavar="N|NAME,...",
        help="how many devices, or which, go first (default: %(default)s)",
    )
    update.add_argument(
        "--limit",
        type=float,
        default=LIMIT_S,
        metavar="S",
        help="seconds until a device counts as lost (default: %(default)g)",
    )
    update.add_argument(
        "--expires",
        type=float,
        default=EXPIRES_DAYS,
        metavar="DAYS",
        help="how long the signed release is good for (default: %(default)g)",
    )
    update.add_argument(
        "--store",
        type=Path,
        metavar="RUN.toml",
        help="offer the wheels on the web server of this run file's table [blobs] too; goes with --wheelhouse",
    )
    status = commands.add_parser("status", help="show every device's version and how far the rollout is")
    status.add_argument("--json", action="store_true", help="print one JSON document")
    halt = commands.add_parser("halt", help="upgrade no more devices; those on trial go back")
    back = commands.add_parser("rollback", help="have devices return to what they ran before the last rollout")
    for command in (update, status, halt, back):
        command.add_argument(
            "--dir",
            type=Path,
            default=DEFAULT_FOLDER,
            metavar="DIR",
            help="the folder of `coordinator init` (default: ./fleet)",
        )
    return parser


def _open_authority(folder: Path) -> Authority:
    if not (folder / SETTINGS_NAME).exists():
        raise SecurityError(
            f"only a secured fleet can be upgraded over the air, since devices install nothing unsigned, and {folder} "
            f"holds no authority; name it with --dir, or make one with `sparsyedge coordinator init`"
        )
    return Authority.open(folder)


def _update(authority: Authority, file: RolloutFile, arguments: argparse.Namespace) -> int:
    with file.driving():
        last = file.read()
        rollout = _to_go_on(last) if arguments.wheelhouse is None else _begin(authority, file, last, arguments)
        _allow_topics(authority)
        with _driver(authority, file, rollout, arguments.expires) as driver, on_signals(driver.stop):
            rollout = driver.run()
    for line in heading(rollout):
        print(line, flush=True)
    if rollout.state == "running":
        print("cut short; go on with `sparsyedge fleet update`")
    elif left := unreached(rollout):
        print(f"away meanwhile: {', '.join(left)}; once they are back, run `sparsyedge fleet update` again")
    reached = any(each.is_kept for each in rollout.devices.values())
    return 0 if rollout.state == "done" and reached else EXIT_FAILED


def _to_go_on(rollout: Rollout | None) -> Rollout:
    if rollout is None:
        raise ConfigError("there is no rollout to go on with; begin one with --wheelhouse DIR")
    if rollout.state == "halted":
        raise RunError(
            f"the rollout of {rollout.software} has halted: {rollout.reason}; begin another with --wheelhouse DIR, or "
            f"take it back with `sparsyedge fleet rollback`"
        )
    # Devices that were away when it ended get their turn.
    return rollout if rollout.state in ("running", "returning") else msgspec.structs.replace(rollout, state="running")


def _begin(authority: Authority, file: RolloutFile, last: Rollout | None, arguments: argparse.Namespace) -> Rollout:
    """Make a new rollout of a wheelhouse, on disk before anything is sent."""
    if last is not None and last.state in ("running", "returning"):
        raise RunError(
            f"the rollout of {last.software} is not over; go on with `sparsyedge fleet update` without --wheelhouse, "
            f"or end it with `sparsyedge fleet halt`"
        )
    version, sets = read_wheelhouse(arguments.wheelhouse)
    store = _store_of(arguments.store, authority)
    release = Release(
        fleet=authority.settings.fleet, version=1, software=version, issued_unix_s=0, expires_unix_s=0, sets=sets
    )
    with authority.ledger() as ledger:
        members = {one.device: Progress() for one in ledger.members() if one.revoked_at is None}
    count, named = _canaries(arguments.canary, members)
    keep_files(arguments.wheelhouse, sets, file.files)
    for library in libraries.record(authority.folder, [arguments.wheelhouse]):
        print(f"{library.wheel} has an op library ({library.platform}) that no artifacts are signed for yet: run")
        print("`sparsyedge coordinator sign ARTIFACTS` before a run uses it, or devices refuse the release")
    rollout = Rollout(
        fleet=authority.settings.fleet,
        bundle=release.bundle,
        software=version,
        canaries=count,
        named=named,
        limit_s=arguments.limit,
        last_serial=last.last_serial if last else 0,
        devices=members,
    )
    file.write_sets(sets)
    file.write_store(store)
    file.write(rollout)
    megabytes = sum(one.bytes for wheels in sets for one in wheels.files) / 1e6
    fits = ", ".join(f"Python {wheels.python} on {wheels.machine}" for wheels in sets)
    print(f"sparsyedge {version} for {fits}: {megabytes:.1f} MB, bundle {release.bundle[:12]}", flush=True)
    return rollout


def _store_of(run: Path | None, authority: Authority) -> BlobsConfig | None:
    """The web server of a run file, tried out; raises ConfigError if there is none or nothing can be put there."""
    if run is None:
        return None
    store = load_run_config(run).blobs
    if store is None:
        raise ConfigError(f"--store is {run}, and that run has no table [blobs]; docs/how-to/web-store.md shows one")
    probe(store, ca=authority.coordinator.ca)
    return store


def _canaries(text: str, members: dict[str, Progress]) -> tuple[int, tuple[str, ...]]:
    if text.isdigit() and text not in members:
        if int(text) < 1:
            raise ConfigError(f"--canary is {text}, allowed are 1 and more, or names of devices")
        return int(text), ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in members]
    if unknown or not names:
        raise ConfigError(
            f"--canary is {text!r}, and {', '.join(unknown) or 'nobody'} is no device of this fleet; "
            f"`sparsyedge coordinator identities` lists them"
        )
    return len(names), names


def _allow_topics(authority: Authority) -> None:
    """An authority of an earlier version has not told its broker that members may read releases and orders."""
    with authority.ledger() as ledger:
        authority.write_lists(ledger)
    authority.reload()


@contextmanager
def _driver(authority: Authority, file: RolloutFile, rollout: Rollout, expires_days: float) -> Iterator[Driver]:
    link = authority.link(f"{rollout.fleet}-rollout-{uuid.uuid4().hex[:12]}")
    config = file.read_store()
    store = BlobStore(config, run=f"{rollout.fleet}-release", run_dir=file.folder) if config is not None else None
    driver = Driver(authority, file, rollout, link, expires_s=expires_days * DAY_S, say=_say, store=store)
    link.open()
    try:
        yield driver
    finally:
        link.close()


def _ask(authority: Authority, file: RolloutFile, request: Request) -> int:
    rollout = file.read()
    if rollout is None:
        raise RunError("there is no rollout; begin one with `sparsyedge fleet update --wheelhouse DIR`")
    if request == "halt" and rollout.state != "running":
        raise RunError(f"the rollout of {rollout.software} is {rollout.state} already; there is nothing to halt")
    try:
        with file.driving():
            rollout = file.read() or rollout
            with _driver(authority, file, rollout, EXPIRES_DAYS) as driver, on_signals(driver.stop):
                rollout = driver.run(Halt() if request == "halt" else Return())
    except RunError:
        # Somebody drives it, and looks for requests every moment.
        file.ask(request)
        print("asked the process that drives the rollout; `sparsyedge fleet status` shows what becomes of it")
        return 0
    for line in heading(rollout):
        print(line)
    stayed = [name for name, each in rollout.devices.items() if each.running == rollout.bundle]
    if request == "halt" or not stayed:
        return 0
    for name in stayed:
        each = rollout.devices[name]
        print(f"{name} still runs it: {each.reason if each.online else 'it is away; run this again once it is back'}")
    return EXIT_FAILED


def _status(authority: Authority, file: RolloutFile, *, as_json: bool) -> int:
    rollout, note = looked_at(authority, file)
    if as_json:
        print(msgspec.json.encode(rollout).decode())
        return 0
    console = Console()
    lines = [*heading(rollout), "", *as_lines(rollout, width=console.width), *([note] if note else [])]
    console.print(Text("\n".join(lines)))
    return 0


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
