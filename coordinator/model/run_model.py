"""Puts together the parts that work on a run's global model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from sparsyedge.coordinator.aggregation.influence import Influence
from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.rules import make_rule
from sparsyedge.coordinator.allocator import give_back_free_memory
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.decoded_updates import DecodedUpdates
from sparsyedge.coordinator.model.evaluate import Evaluate
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.round_average import RoundAverage
from sparsyedge.coordinator.model.round_closing import RoundClosing
from sparsyedge.coordinator.model.round_updates import RoundUpdates
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.workers.pool import WorkerPool
from sparsyedge.coordinator.workers.shared_model import SharedModel
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.tensors import State

__all__ = ["RunModel", "open_model"]


@dataclass(frozen=True)
class RunModel:
    """The global model with the parts that take updates and close rounds."""

    present: GlobalModel
    updates: RoundUpdates
    closing: RoundClosing
    pool: WorkerPool | None = None

    def close(self) -> None:
        """Close the file of the open round's updates, and end the worker processes and the evaluation under way."""
        with ExitStack() as parts:
            # Each of them, whatever the others raise.
            if self.pool:
                parts.callback(self.pool.close)
            parts.callback(self.updates.close)
            self.closing.record_evaluation(wait=True)


def open_model(
    config: RunConfig,
    artifacts: Artifacts,
    initial: State,
    *,
    store: Store,
    evaluate: Evaluate,
    round_number: int = 1,
) -> RunModel:
    """Open the model that a round starts from: the initial one, or the version that an earlier process saved."""
    manifest, bounded = artifacts.manifest, config.bounded_aggregation
    rule = influence = None
    if bounded is not None:
        rule = make_rule(bounded, manifest.method)
        factor = bounded.clip or rule.clip
        influence = Influence(bounded, factor=factor, told=store.adjusted_devices())
    layout, count = layout_of(manifest), config.ingest_workers
    shared = SharedModel(layout) if count > 1 else None
    into = shared.state if shared else layout.empty()
    model = GlobalModel(config, artifacts, initial, round_number=round_number, into=into)
    folder, pool = config.run_path / "updates", None
    if shared:
        pool = WorkerPool(count, run=config.name, manifest=manifest, model=shared, base=model.base, folder=folder)
    updates = RoundUpdates(config, decoded=DecodedUpdates(config.name, model, folder, pool), store=store)
    updates.drop(round_number - 1)
    average = RoundAverage(config, updates=updates, store=store, rule=rule, influence=influence)
    beginning = RoundBase(manifest, model.base.layout, initial)
    closing = RoundClosing(
        config, manifest, beginning, model=model, updates=updates, average=average, evaluate=evaluate, store=store
    )
    give_back_free_memory()
    closing.catch_up(round_number - 1)
    return RunModel(model, updates, closing, pool)
