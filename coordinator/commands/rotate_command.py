"""`sparsyedge coordinator rotate [--status | --finish [--leave-behind NAME ...] | --abort]`."""

from __future__ import annotations

import argparse
import fcntl
from pathlib import Path

from sparsyedge.coordinator.authority import rotation
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import LOCK_NAME
from sparsyedge.coordinator.authority.rotation import Rotation
from sparsyedge.coordinator.rollout.rollout_file import RolloutFile
from sparsyedge.edge.commands.arguments import Parser
from sparsyedge.edge.errors import ConfigError, SecurityError

__all__ = ["COMMANDS", "add_commands", "main"]

COMMANDS = ("rotate",)


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add this command to those of `sparsyedge coordinator`."""
    rotate = commands.add_parser(
        "rotate", help="replace a fleet's authority and signing key; its devices follow by themselves"
    )
    rotate.add_argument("--dir", type=Path, default=Path("fleet"), metavar="DIR", help="the folder of `init`")
    what = rotate.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show who has followed and who has not")
    what.add_argument("--finish", action="store_true", help="switch to the new authority and drop the old one")
    what.add_argument("--abort", action="store_true", help="before `--finish`: have the devices go back")
    rotate.add_argument(
        "--leave-behind",
        nargs="+",
        default=[],
        metavar="NAME",
        help="finish without these devices, which will need a new token",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; raises SparsyedgeError for an expected failure."""
    authority = Authority.open(arguments.dir)
    if arguments.leave_behind and not arguments.finish:
        raise ConfigError("`--leave-behind` says whom `--finish` does not wait for; add `--finish`")
    if arguments.status:
        _show(authority, rotation.settle(authority))
    elif arguments.finish:
        _require_no_rollout(authority)
        _tell_end(authority, rotation.finish(authority, arguments.leave_behind))
    elif arguments.abort:
        state = rotation.abort(authority)
        if state.is_open:
            _show(authority, state)
        else:
            _tell_end(authority, state)
    else:
        _show(authority, rotation.begin(authority))
    return 0


def _require_no_rollout(authority: Authority) -> None:
    """Raise SecurityError while an upgrade is under way: its orders are signed with the key that is about to go."""
    rollout = RolloutFile(authority.folder).read()
    if rollout is not None and rollout.state in ("running", "returning"):
        raise SecurityError(
            f"an upgrade of the fleet is {rollout.state}, and its orders are signed with the key that would go; let it "
            f"end, or halt it with `sparsyedge fleet halt --dir {authority.folder}`"
        )


def _show(authority: Authority, state: Rotation | None) -> None:
    if state is None:
        _say(f"the authority in {authority.folder} was never rotated")
        return
    if not state.is_open:
        _say(f"no rotation is under way; the last one ended with statement {state.number}")
        return
    heads = rotation.headcount(authority, state)
    _say(heads.sentence())
    _warn_if_silent(authority)
    command = f"sparsyedge coordinator rotate --finish --dir {authority.folder}"
    if heads.missing:
        _say(f"the fleet goes on meanwhile; once all have followed: {command}")
    else:
        _say(f"all have followed: {command}")


def _tell_end(authority: Authority, state: Rotation) -> None:
    _say(f"one authority is left; its key is {authority.signing_key[:12]}..., and devices are told to forget the other")
    if state.left_behind:
        _say(f"left behind, and revoked: {', '.join(state.left_behind)}; each needs a new file of `coordinator token`")
    _say("runs under way have taken the new key; for others: sparsyedge coordinator sign ARTIFACTS")
    if authority.reload():
        _say("the broker has read its files again; restart it to end connections that were open before")
    else:
        _say("not every broker runs on this machine: copy the files there, as docs/how-to/secure-a-fleet.md says")
    _say("make a backup now: earlier ones hold an authority that devices do not trust any more")
    _warn_if_silent(authority)


def _warn_if_silent(authority: Authority) -> None:
    """Say so if no process is there that tells the devices."""
    with (authority.folder / LOCK_NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    _say(f"nobody tells the devices right now: start a run, or `sparsyedge coordinator enrol --dir {authority.folder}`")


def _say(line: str) -> None:
    print(line, flush=True)
