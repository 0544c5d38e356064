"""A run from its config to its model: everything is checked first, then the broker, the store and the loop."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable

import msgspec

from sparsyedge.coordinator.config import RunConfig, check_run_config
from sparsyedge.coordinator.evaluate import Evaluator, check_fit
from sparsyedge.coordinator.global_model import Evaluate, GlobalModel
from sparsyedge.coordinator.leader import Leader
from sparsyedge.coordinator.observer import Observer
from sparsyedge.coordinator.records import RunSummary
from sparsyedge.coordinator.store import Store
from sparsyedge.edge.artifacts import Artifacts
from sparsyedge.edge.channel import Channel
from sparsyedge.edge.data import load
from sparsyedge.edge.dense_session import DenseSession
from sparsyedge.edge.errors import ConfigError, RunError, SparsyedgeError
from sparsyedge.edge.link import Link
from sparsyedge.edge.methods import method_of
from sparsyedge.edge.tensors import State, dense_bytes

__all__ = ["Coordinator", "prepare"]

log = logging.getLogger(__name__)


def prepare(
    config: RunConfig,
    observer: Observer,
    *,
    connect: Callable[[], Channel] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Coordinator:
    """A coordinator for the run, with artifacts and data read and checked; nothing is written or sent yet.

    `connect` and `clock` are for simulations: another way to the devices than the broker, and another time than ours.
    """
    check_run_config(config)
    artifacts = Artifacts.load(config.artifacts_path)
    _check_method(config, artifacts)
    dataset = load(config.dataset, config.data_path)
    check_fit(dataset, artifacts.manifest)
    session = DenseSession(artifacts, threads=config.threads)
    initial = session.state()
    return Coordinator(
        config,
        artifacts,
        initial=initial,
        evaluate=Evaluator(session, dataset.test),
        observer=observer,
        connect=connect,
        clock=clock,
    )


def _check_method(config: RunConfig, artifacts: Artifacts) -> None:
    """Refuse artifacts of another method, or of the same with other options, than the run file asks for."""
    if config.method is None:
        return
    wanted, found = method_of(config.method), artifacts.manifest.method
    for field in wanted.__struct_fields__:
        if getattr(wanted, field) != getattr(found, field):
            raise ConfigError(
                f"key `method.{field}` is {getattr(wanted, field)!r} in the run file, and the artifacts in "
                f"{artifacts.directory} were exported for {getattr(found, field)!r}; export again or change the key"
            )


class Coordinator:
    """One run of one fleet."""

    def __init__(
        self,
        config: RunConfig,
        artifacts: Artifacts,
        *,
        initial: State,
        evaluate: Evaluate,
        observer: Observer,
        connect: Callable[[], Channel] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._artifacts = artifacts
        self._initial = initial
        self._evaluate = evaluate
        self._observer = observer
        self._connect = connect or self._link
        self._clock = clock
        self._interrupted = threading.Event()

    def interrupt(self) -> None:
        """Make `run` return soon, giving up the round that is open; safe in a signal handler and in any thread."""
        self._interrupted.set()

    def run(self) -> RunSummary:
        """Lead the fleet through all rounds and deliver the model; blocks until the run is over.

        Raises LinkError where there is no broker, and RunError where a run is in the directory already or a round could
        not be completed.
        """
        config = self._config
        link = self._connect()
        # The broker first: a run directory without a run in it would only be in the way of the next attempt.
        link.open()
        try:
            store = Store.create(
                config.run_path,
                name=config.name,
                fleet=config.fleet,
                rounds=config.rounds,
                dense_bytes=dense_bytes(self._initial),
                config=msgspec.json.encode(config).decode(),
            )
            try:
                return self._record(link, store)
            finally:
                store.close()
        finally:
            link.close()

    def _link(self) -> Channel:
        config = self._config
        return Link(config.broker.host, config.broker.port, identity=f"{config.fleet}-coordinator-{config.name}")

    def _record(self, link: Channel, store: Store) -> RunSummary:
        """Lead the run and leave in the store how it ended, whichever way that is."""
        try:
            self._lead(link, store)
        except SparsyedgeError as error:
            self._note_failure(store, error)
            raise
        except BrokenPipeError:  # an observer prints to somebody who has gone
            raise
        except (OSError, sqlite3.Error) as error:
            failure = RunError(
                f"cannot write to the run directory {self._config.run_path}: {error}; check the disk and start again"
            )
            self._note_failure(store, failure)
            raise failure from error
        return store.summary()

    def _note_failure(self, store: Store, error: SparsyedgeError) -> None:
        try:
            store.end_run("failed", reason=str(error))
        except sqlite3.Error as fault:
            log.warning("the failure itself could not be recorded: %s", fault)
        self._observer.run_ended(state="failed", reason=str(error))

    def _lead(self, link: Channel, store: Store) -> None:
        model = GlobalModel(self._config, self._artifacts, self._initial, store=store, evaluate=self._evaluate)
        leader = Leader(
            self._config,
            self._artifacts,
            link=link,
            store=store,
            model=model,
            observer=self._observer,
            interrupted=self._interrupted,
            clock=self._clock,
        )
        outcome = leader.lead()
        # A run that was stopped before its first round closed has nothing that its user has not got already.
        sha256 = None if model.is_initial else model.deliver()
        store.end_run(outcome, model_sha256=sha256)
        self._observer.run_ended(state=outcome, reason="")
