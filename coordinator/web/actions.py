"""What the logged-in may do to a run; the same functions as the commands of these names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.revocation import revoke
from sparsyedge.coordinator.record import run_requests
from sparsyedge.edge.errors import SecurityError

__all__ = ["ACTIONS"]

Action = Callable[[Path, Path | None, str], str]


def _revoke(run_dir: Path, authority: Path | None, device: str) -> str:
    if authority is None:
        raise SecurityError("this fleet has no authority, so nobody can be revoked; docs/how-to/secure-a-fleet.md")
    done = revoke(Authority.open(authority), device)
    ended = " and its connection is ended" if done.disconnected else ""
    return f"revoked {device}: {done.certificates} valid certificates until now, its tokens are void{ended}"


ACTIONS: dict[str, Action] = {
    "pause": lambda run_dir, authority, device: run_requests.pause(run_dir),
    "resume": lambda run_dir, authority, device: run_requests.resume(run_dir),
    "stop": lambda run_dir, authority, device: run_requests.stop(run_dir),
    "release": lambda run_dir, authority, device: run_requests.release(run_dir, device),
    "revoke": _revoke,
}
"""What each does, and a sentence on what happens now."""
