"""Decides whether an existing run can resume with this config, and for how many rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.record.records import Stretch
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.learning_rates import learning_rate
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Artifacts

__all__ = ["check_same_run", "finished_text", "recorded_config", "resume_store"]

MAY_CHANGE = frozenset(
    {"artifacts", "run_dir", "data_dir", "authority", "threads", "ingest_workers", "eval_may_lag"}
    | {"broker", "blobs", "deadline_s", "eval_devices_every"}
)
"""Paths, and how long to wait. Changing any other key would give a different model."""
WITH_ROUNDS = frozenset({"rounds", "learning_rate"})
"""Keys that may change together with `rounds`, for the rounds still to come."""


def resume_store(config: RunConfig, artifacts: Artifacts, *, tell: Callable[[str], None]) -> Store:
    """Open the store of a run to resume; raises RunError if the run is finished or began with another config.

    A new number of rounds is recorded, and `tell` gets sentences that explain the effect.
    """
    store = Store.open(config.run_path)
    try:
        before = check_same_run(config, store, longer=True)
        if store.artifacts_id() != artifacts.id:
            raise RunError(
                f"the run in {config.run_path} was begun with other artifacts than those in {artifacts.directory}; "
                f"point `artifacts` at the ones that it was begun with, or choose another `run_dir`"
            )
        if config.rounds == before.rounds:
            if store.run().state == "finished":
                raise RunError(finished_text(config))
            store.resume_run()
        else:
            _change_rounds(config, store)
            for sentence in _explain(before, config, artifacts, store):
                tell(sentence)
    except BaseException:
        store.close()
        raise
    return store


def check_same_run(config: RunConfig, store: Store, *, longer: bool = False) -> RunConfig:
    """Return the config the run uses now; raises RunError if the new one would give a different model.

    With `longer`, the number of rounds may change, and with it the learning rates of the rounds still to come.
    """
    before = _config_before(type(config), config.run_path, store)
    may_change = MAY_CHANGE | (WITH_ROUNDS if longer and config.rounds != before.rounds else frozenset())
    for key in config.__struct_fields__:
        old, new = getattr(before, key), getattr(config, key)
        if key not in may_change and old != new and not (key == "dataset" and _moved(old, new)):
            also = "change `rounds` as well, " if longer and key in WITH_ROUNDS else ""
            raise RunError(
                f"the run in {config.run_path} was begun with `{key}` = {_show(old)}, the config now says "
                f"{_show(new)}; put the old value back, {also}or choose another `run_dir`"
            )
    return before


def recorded_config(store: Store, run_dir: Path) -> RunConfig:
    """The config that a run goes on with, in the directory where it is now.

    Raises RunError if another command began the run.
    """
    return msgspec.structs.replace(_config_before(RunConfig, run_dir, store), run_dir=str(run_dir.resolve()))


def _config_before(kind: type[RunConfig], run_dir: Path, store: Store) -> RunConfig:
    """The run's recorded config, as this type."""
    try:
        content = msgspec.json.decode(store.config(), type=dict[str, Any])
        for key in set(content) - set(kind.__struct_fields__):
            # Another command's key; null means the same as no key.
            if content.pop(key) is not None:
                raise RunError(
                    f"the run in {run_dir} was begun with `{key}`, by another command; go on with that "
                    "command, or choose another `run_dir`"
                )
        return msgspec.convert(content, kind)
    except msgspec.DecodeError as error:
        raise RunError(
            f"the config of the run in {run_dir} cannot be read ({error}); use the sparsyedge that made the run"
        ) from error


def finished_text(config: RunConfig) -> str:
    """The message for a user who starts a finished run again."""
    return (
        f"run {config.name} in {config.run_path} is finished after {config.rounds} rounds; raise `rounds` to go on "
        f'with it, or begin another run from its model: `initial = "{config.run_dir}"`, with another `run_dir`'
    )


def _change_rounds(config: RunConfig, store: Store) -> None:
    """Record the new number of rounds. It must exceed the closed rounds: the last round is special."""
    closed = store.progress().closed_round
    if config.rounds <= closed:
        raise RunError(
            f"key `rounds` has value {config.rounds}, and run {config.name} in {config.run_path} has closed {closed} "
            f"rounds; allowed are {closed + 1} and more"
        )
    stretch = Stretch(first_round=closed + 1, rounds=config.rounds)
    store.resume_run(stretch=stretch, config=msgspec.json.encode(config).decode())


def _explain(before: RunConfig, config: RunConfig, artifacts: Artifacts, store: Store) -> Iterator[str]:
    """Explain the effect of the new number of rounds, in sentences that fit a terminal."""
    progress = store.progress()
    closed, opened = progress.closed_round, progress.open
    yield f"run {config.name} has {config.rounds} rounds from now on, not {before.rounds}; {closed} are closed"
    if artifacts.manifest.method.mask == "last-round" and closed == before.rounds:
        yield f"round {closed} was the last and has pruned the model; the next one starts from that"
    last = opened.learning_rate if opened else store.rounds()[-1].learning_rate if closed else None
    present = opened.round if opened else closed
    if last is None or present == config.rounds:
        return
    rate = config.learning_rate
    following = learning_rate(present + 1, config.rounds, start=rate.start, end=rate.end)
    yield (
        f"learning rate: {last:.4g} in round {present}, {following:.4g} in round {present + 1}, "
        f"{rate.end:.4g} in round {config.rounds}"
    )
    if following > last:
        yield f"it rises, as the schedule covers {config.rounds} rounds now; hold it with start = end = {last:.4g}"


def _moved(before: str, now: str) -> bool:
    """Whether both are paths ending in the same name: a data set may move, like artifacts."""
    return os.sep in before and os.sep in now and Path(before).name == Path(now).name


def _show(value: object) -> str:
    return msgspec.json.encode(value).decode()
