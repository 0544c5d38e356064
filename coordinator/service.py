"""A run from config to model: checks everything first, then opens the broker and the store and runs the loop."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

import msgspec

from sparsyedge.coordinator.aggregation.round_base import layout_of
from sparsyedge.coordinator.blobs_config import BlobsConfig
from sparsyedge.coordinator.config import RunConfig, check_run_config
from sparsyedge.coordinator.delivery_config import check_delivery_of
from sparsyedge.coordinator.fleet.blob_store import BlobStore, probe
from sparsyedge.coordinator.fleet.broker_access import (
    check_epochs,
    make_link,
    manifest_signature,
    open_authority,
    warn_of_unsigned_libraries,
)
from sparsyedge.coordinator.fleet.leader import Leader
from sparsyedge.coordinator.fleet.lease import FleetLease
from sparsyedge.coordinator.fleet.live_file import LiveFile
from sparsyedge.coordinator.fleet.lock import RunLock
from sparsyedge.coordinator.fleet.plan import check_selection, check_warmup
from sparsyedge.coordinator.fleet.run_key import check_run_key, open_run_key
from sparsyedge.coordinator.model.deliver import deliver_model
from sparsyedge.coordinator.model.evaluate import Evaluate, Evaluator, Extend, evaluation_samples
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.initial_model import is_begun, keep_beginning, kept_initial_model, read_given_model
from sparsyedge.coordinator.model.run_model import RunModel, open_model
from sparsyedge.coordinator.record.device_evaluations import EvaluationRound
from sparsyedge.coordinator.record.metrics import final_figures
from sparsyedge.coordinator.record.observer import Observer
from sparsyedge.coordinator.record.records import RunSummary
from sparsyedge.coordinator.record.run_log import run_log
from sparsyedge.coordinator.record.store import STORE_NAME, Store
from sparsyedge.coordinator.resume import resume_store
from sparsyedge.edge.data import Dataset, Samples, load
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.errors import ConfigError, RunError, SparsyedgeError, StoreError
from sparsyedge.edge.inference.delivery import check_deliverable
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.checkpoint import read_initial_state
from sparsyedge.edge.model.methods import method_of
from sparsyedge.edge.model.training import training_of
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.storage import private_files, remove_leftovers
from sparsyedge.edge.tensors import State, dense_bytes, global_sparsity, model_id

__all__ = ["Coordinator", "prepare"]

log = logging.getLogger(__name__)

NOTABLE = 0.01
"""A model this much sparser than the method's target deserves a note to the user."""


def prepare(
    config: RunConfig,
    observer: Observer,
    *,
    connect: Callable[[], Channel] | None = None,
    clock: Callable[[], float] = time.monotonic,
    extend_evaluation: Extend | None = None,
    takes_turns: bool = False,
    dataset: Dataset | None = None,
    final_test: Samples | None = None,
    evaluated_at_once: int = 1,
) -> Coordinator:
    """Make a coordinator for the run. Reads and checks artifacts and data; writes and sends nothing yet.

    A caller may pass its own channel to the devices, its own clock, and a function that adds to every evaluation.
    With `takes_turns`, devices work one after the other, so one device's pace says nothing about another's.
    Rounds are evaluated on the test part of `dataset`, the run's own if left out; `final_test` are samples to evaluate
    the last model on, once. Up to `evaluated_at_once` batches are evaluated at the same time.
    """
    check_run_config(config)
    artifacts = Artifacts.load(config.artifacts_path)
    _check_method(config, artifacts)
    check_delivery_of(config.delivery, artifacts.manifest.method)
    check_selection(config.selection, artifacts.manifest)
    check_warmup(config.rounds, artifacts.manifest.method)
    check_deliverable(artifacts)
    manifest_signature(config)
    check_epochs(config, artifacts.manifest.max_epochs)
    check_run_key(config, is_new=not (config.run_path / STORE_NAME).is_file())
    warn_of_unsigned_libraries(config)
    dataset = dataset or load(config.dataset, config.data_path)
    samples = evaluation_samples(dataset, artifacts.manifest)
    session = EvalSession(artifacts, threads=config.threads)
    final = None
    if final_test is not None:
        test_part = evaluation_samples(replace(dataset, test=final_test), artifacts.manifest)
        final = Evaluator(session, test_part, at_once=evaluated_at_once)
    initial, origin = read_initial_state(artifacts), ""
    if config.initial_path is not None and not is_begun(config.run_path):
        initial, origin = read_given_model(config.initial_path, artifacts)
    # The figures of every round compare with it, so it stays in memory, once.
    initial = layout_of(artifacts.manifest).moved(initial)
    return Coordinator(
        config,
        artifacts,
        initial=initial,
        origin=origin,
        evaluate=Evaluator(session, samples, extend_evaluation, at_once=evaluated_at_once),
        final=final,
        observer=observer,
        connect=connect,
        clock=clock,
        takes_turns=takes_turns,
    )


def _check_method(config: RunConfig, artifacts: Artifacts) -> None:
    """Raise ConfigError if the artifacts were exported for another method, or other options, than the run file's.

    The same goes for the training.
    """
    manifest = artifacts.manifest
    pairs: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {}
    if config.method is not None:
        pairs["method"] = method_of(config.method), manifest.method
    if config.training is not None:
        pairs["training"] = training_of(config.training), manifest.training
    for table, (wanted, found) in pairs.items():
        for field in wanted.__struct_fields__:
            if getattr(wanted, field) != getattr(found, field):
                raise ConfigError(
                    f"key `{table}.{field}` is {getattr(wanted, field)!r} in the run file, and the artifacts in "
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
        final: Evaluate | None = None,
        observer: Observer,
        origin: str = "",
        connect: Callable[[], Channel] | None = None,
        clock: Callable[[], float] = time.monotonic,
        takes_turns: bool = False,
    ) -> None:
        """A new run starts from `initial`: the state from `origin`, or the checkpoint's if that is empty."""
        self._config = config
        self._artifacts = artifacts
        self._initial = initial
        self._origin = origin
        self._evaluate = evaluate
        self._final = final
        self._observer = observer
        self._connect = connect
        self._clock = clock
        self._takes_turns = takes_turns
        self._interrupted = threading.Event()
        self._is_new = False
        self._supervisor = Supervisor()

    def interrupt(self) -> None:
        """Make `run` abandon the open round and return soon; safe in a signal handler and in any thread."""
        self._interrupted.set()

    def run(self) -> RunSummary:
        """Lead the fleet through the remaining rounds and deliver the model; blocks until the run is over.

        Resumes a run that is already in the directory. Raises LinkError if there is no broker, and RunError if another
        coordinator is at work, the run cannot resume, or a round could not complete.
        """
        config = self._config
        if self._blobs is not None:
            authority = open_authority(config)
            probe(self._blobs, ca=authority.coordinator.ca if authority else None)
        link = (self._connect or self._main_link)()
        # Connect first: without a broker, an empty run directory would only get in the way of the next attempt.
        link.open()
        try:
            with (
                private_files(),
                RunLock(config.run_path),
                run_log(config.run_path),
                self._lease() as check,
                closing(self._open_store()) as store,
                self._live() as live,
            ):
                return self._record(link, store, check, live)
        finally:
            link.close()

    def evaluate(self) -> EvaluationRound:
        """Have the fleet evaluate the run's present model, while nobody leads the run; it stays as it is otherwise.

        Blocks until the devices that are online have answered, or `interrupt` ends it.
        """
        config = self._config
        link = (self._connect or self._main_link)()
        link.open()
        try:
            with (
                private_files(),
                RunLock(config.run_path),
                self._lease() as check,
                closing(Store.open(config.run_path)) as store,
            ):
                store.wait_for_lock(lambda: not self._interrupted.is_set())
                leader, _ = self._make_leader(link, store, check, None, evaluates_only=True)
                return leader.evaluate()
        finally:
            link.close()

    @property
    def _blobs(self) -> BlobsConfig | None:
        """The store that devices fetch from; those on a caller's own channel have no network."""
        return self._config.blobs if self._connect is None else None

    def _main_link(self) -> Channel:
        return self._link(f"{self._config.fleet}-coordinator-{uuid.uuid4().hex[:12]}", None)

    def _link(self, identity: str, will: tuple[str, bytes] | None) -> Channel:
        return make_link(self._config, identity, will)

    def _lease(self) -> AbstractContextManager[Callable[[], None]]:
        """Holds the fleet and yields a check that raises if the lease is lost; a caller's own channel has no rivals."""
        if self._connect is not None:
            return nullcontext(lambda: None)
        config = self._config
        return FleetLease(self._link, Topics(config.fleet), run=config.name, run_dir=config.run_path)

    def _live(self) -> AbstractContextManager[LiveFile | None]:
        """Shows what the run is doing. Whoever brings a channel, and perhaps a clock, has other ways to look."""
        return closing(LiveFile(self._config.run_path)) if self._connect is None else nullcontext()

    def _open_store(self) -> Store:
        """Resume the run in the directory, or create a new one."""
        config = self._config
        if Store.exists(config.run_path):
            return resume_store(config, self._artifacts, tell=self._observer.note)
        self._is_new = True
        keep_beginning(config, self._artifacts, self._initial)
        for sentence in self._describe_origin():
            self._observer.note(sentence)
        return Store.create(
            config.run_path,
            name=config.name,
            fleet=config.fleet,
            rounds=config.rounds,
            dense_bytes=dense_bytes(self._initial),
            artifacts_id=self._artifacts.id,
            began_from=self._origin,
            config=msgspec.json.encode(config).decode(),
        )

    def _describe_origin(self) -> Iterator[str]:
        """Describe an initial model that is not the checkpoint's."""
        if not self._origin:
            return
        method, prunable = self._artifacts.manifest.method, self._artifacts.manifest.prunable
        sparsity = global_sparsity(self._initial, prunable)
        yield f"begins from {self._origin}: model {model_id(self._initial)[:12]}, sparsity {sparsity:.4f}"
        if method.keeps_zeros and sparsity > method.sparsity + NOTABLE:
            yield f"zeros stay zero with {method.name}: it stays that sparse, beyond its target {method.sparsity:g}"

    def _record(self, link: Channel, store: Store, check: Callable[[], None], live: LiveFile | None) -> RunSummary:
        """Lead the run and record its outcome in the store, whatever happens."""
        store.wait_for_lock(lambda: self._keeps_waiting(live))
        try:
            self._lead(link, store, check, live)
        except SparsyedgeError as error:
            self._note_failure(store, error, live)
            raise
        except BrokenPipeError:  # whoever read the observer's output is gone
            raise
        except (OSError, sqlite3.Error) as error:
            failure = RunError(
                f"cannot write to the run directory {self._config.run_path}: {error}; check the disk and start again"
            )
            self._note_failure(store, failure, live)
            raise failure from error
        return store.summary()

    def _keeps_waiting(self, live: LiveFile | None) -> bool:
        """Tell whether to wait for a store that is locked, and say so."""
        if live is not None:
            path = self._config.run_path / STORE_NAME
            live.say(f"the coordinator waits for {path}, which another process has locked")
        return not self._interrupted.is_set()

    def _note_failure(self, store: Store, error: SparsyedgeError, live: LiveFile | None) -> None:
        if live is not None:
            live.end(f"the run has failed: {error}")
        try:
            store.end_run("failed", reason=str(error))
        except (sqlite3.Error, StoreError) as fault:
            log.warning("could not record the failure itself: %s", fault)
        self._observer.run_ended(state="failed", reason=str(error))

    def _lead(self, link: Channel, store: Store, check: Callable[[], None], live: LiveFile | None) -> None:
        leader, model = self._make_leader(link, store, check, live)
        self._supervisor.ready()
        outcome = leader.lead()
        # A run stopped before its first round closed has no new model to deliver.
        sha256 = self._deliver(model.present, store) if store.progress().closed_round else None
        store.end_run(outcome, model_sha256=sha256)
        self._observer.run_ended(state=outcome, reason="")

    def _make_leader(
        self,
        link: Channel,
        store: Store,
        check: Callable[[], None],
        live: LiveFile | None,
        *,
        evaluates_only: bool = False,
    ) -> tuple[Leader, RunModel]:
        """Open the run's model, and make a leader for it."""
        for folder in ("models", "updates"):
            remove_leftovers(self._config.run_path / folder)
        if self._config.initial is not None:
            manifest = self._artifacts.manifest
            self._initial = layout_of(manifest).moved(kept_initial_model(self._config.run_path, manifest))
        model = open_model(
            self._config,
            self._artifacts,
            self._initial,
            store=store,
            evaluate=self._evaluate,
            round_number=store.progress().closed_round + 1,
        )
        leader = Leader(
            self._config,
            self._artifacts,
            link=link,
            store=store,
            model=model,
            observer=self._observer,
            interrupted=self._interrupted,
            check=lambda: self._show_life(check),
            clock=self._clock,
            run_key=open_run_key(self._config, is_new=self._is_new),
            takes_turns=self._takes_turns,
            blobs=BlobStore(self._blobs, run=self._config.name, run_dir=self._config.run_path) if self._blobs else None,
            live=live,
            evaluates_only=evaluates_only,
        )
        return leader, model

    def _show_life(self, check: Callable[[], None]) -> None:
        """What every tick does: see that the fleet is still ours, and tell the service manager that we live."""
        check()
        self._supervisor.alive()

    def _deliver(self, model: GlobalModel, store: Store) -> str:
        if self._final is not None:
            found, last = model.lend(model.averaged(), self._final), store.progress().closed_round
            store.note_figures(last, final_figures(found))
        return deliver_model(self._config, self._artifacts, model, store=store, evaluate=self._evaluate)
