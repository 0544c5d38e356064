"""Whether a run that is in its directory already can go on with this config."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.store import Store
from sparsyedge.edge.artifacts import Artifacts
from sparsyedge.edge.errors import RunError

__all__ = ["check_same_run", "resume_store"]

MAY_CHANGE = frozenset({"artifacts", "run_dir", "data_dir", "authority", "threads", "broker", "deadline_s"})
"""Where things are and how long to wait; everything else would make another model of the same run."""


def resume_store(config: RunConfig, artifacts: Artifacts) -> Store:
    """The store of the run that is to go on; raises RunError where it is over, or was begun as another run."""
    store = Store.open(config.run_path)
    try:
        _check_state(config, store)
        check_same_run(config, store)
        if store.manifest_sha256() != artifacts.manifest_sha256:
            raise RunError(
                f"the run in {config.run_path} was begun with other artifacts than those in {artifacts.directory}; "
                f"point `artifacts` at the ones that it was begun with, or choose another `run_dir`"
            )
        store.resume_run()
    except BaseException:
        store.close()
        raise
    return store


def _check_state(config: RunConfig, store: Store) -> None:
    run = store.run()
    if run.state == "finished":
        raise RunError(
            f"run {run.name} in {config.run_path} is finished after {run.rounds} rounds; choose another `run_dir`"
        )


def check_same_run(config: RunConfig, store: Store) -> None:
    """Refuse a config that would make another model than the one that the run was begun with; raises RunError."""
    try:
        before = msgspec.json.decode(store.config(), type=RunConfig)
    except msgspec.DecodeError as error:
        raise RunError(
            f"the config of the run in {config.run_path} cannot be read ({error}); use the sparsyedge that made the run"
        ) from error
    for key in RunConfig.__struct_fields__:
        old, new = getattr(before, key), getattr(config, key)
        if key not in MAY_CHANGE and old != new and not (key == "dataset" and _moved(old, new)):
            raise RunError(
                f"the run in {config.run_path} was begun with `{key}` = {_show(old)}, the config now says "
                f"{_show(new)}; put the old value back, or choose another `run_dir`"
            )


def _moved(before: str, now: str) -> bool:
    """Whether both are paths of the same file or folder name: a data set may be put elsewhere, as artifacts may."""
    return os.sep in before and os.sep in now and Path(before).name == Path(now).name


def _show(value: object) -> str:
    return msgspec.json.encode(value).decode()
