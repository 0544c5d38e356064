"""What people ask of a run under way, from a terminal or the page: each returns a sentence on what happens now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.errors import RunError

__all__ = ["pause", "release", "resume", "stop"]


def stop(run_dir: Path) -> str:
    """Ask the run to end after the open round; raises RunError if it is over."""
    with closing(Store.open(run_dir)) as store:
        name = _under_way(store, run_dir, "stop")
        store.request_stop()
    return f"run {name} will finish after the round that is open"


def pause(run_dir: Path) -> str:
    """Ask the run to open no more rounds; raises RunError if it is over."""
    with closing(Store.open(run_dir)) as store:
        name = _under_way(store, run_dir, "pause")
        store.request_pause()
    return f"run {name} will open no round after the one that is open; go on with `coordinator resume {run_dir}`"


def resume(run_dir: Path) -> str:
    """Ask the run to open rounds again; raises RunError if it is not paused."""
    with closing(Store.open(run_dir)) as store:
        run = store.run()
        if "pause" not in store.requests():
            raise RunError(
                f"run {run.name} in {run_dir} is not paused; a run whose coordinator has ended goes on with "
                f"`sparsyedge coordinator run RUN.toml`"
            )
        store.request_resume()
    return f"run {run.name} opens rounds again"


def release(run_dir: Path, device: str) -> str:
    """Ask the run to let a device take part again; raises RunError if it is not in quarantine."""
    with closing(Store.open(run_dir)) as store:
        left_out = store.quarantines()
        if device not in left_out:
            known = f"left out are {', '.join(sorted(left_out))}" if left_out else "nobody is left out"
            raise RunError(f"device {device!r} of the run in {run_dir} is not in quarantine; {known}")
        store.request_release(device)
    return f"device {device} may take part again"


def _under_way(store: Store, run_dir: Path, wish: str) -> str:
    """Return the run's name; raises RunError if the run is over."""
    run = store.run()
    if run.state not in ("running", "paused"):
        raise RunError(f"run {run.name} in {run_dir} is {run.state} already; there is nothing to {wish}")
    return run.name
