"""Closes a round: averages its updates, makes the next model, evaluates it if due, and records the round."""

from __future__ import annotations

from collections.abc import Callable

from sparsyedge.coordinator.aggregation.round_base import RoundBase
from sparsyedge.coordinator.allocator import give_back_free_memory
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.evaluate import Evaluate, evaluate_levels
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.late_evaluation import Evaluated, LateEvaluation
from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.model.round_average import RoundAverage
from sparsyedge.coordinator.model.round_updates import RoundUpdates
from sparsyedge.coordinator.record.device_evaluations import figures_of
from sparsyedge.coordinator.record.metrics import figures_of_round, of_evaluation, of_shares, of_single_model, pack_mask
from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.store import ClosedRound, Store
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.wire.flat_frame import decode_flat

__all__ = ["RoundClosing"]


class RoundClosing:
    """Takes a round from its accepted updates to its record.

    It saves the model first, then records the round, then drops the updates. If it dies in between, the next process
    closes the round again and gets the same model.
    """

    def __init__(
        self,
        config: RunConfig,
        manifest: Manifest,
        initial: RoundBase,
        *,
        model: GlobalModel,
        updates: RoundUpdates,
        average: RoundAverage,
        evaluate: Evaluate,
        store: Store,
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._initial = initial
        self._model = model
        self._updates = updates
        self._average = average
        self._evaluate = evaluate
        self._store = store
        self._late = LateEvaluation()
        self._mask_files = MaskFiles(config.run_path, rounds=config.rounds)

    def close_round(
        self,
        round_number: int,
        devices: tuple[str, ...],
        *,
        elapsed_s: Callable[[], float],
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Make the next model from these devices' updates; the round is recorded when this returns.

        Calls `tell` before what may take long.
        """
        model, manifest = self._model, self._manifest
        # Uploads and checks have left a heap full of holes, and closing needs other sizes.
        give_back_free_memory()
        hashes = self._updates.decode(round_number, devices)
        shares = self._average.judge(round_number, hashes, model.base)
        average, shares = self._average.combine(round_number, hashes, shares)
        pair_cosine = self._average.pair_cosine(hashes)
        version = model.next_version(average.tensors(model.base.layout), round_number=round_number + 1)
        del average
        # Lossy codecs change the average, so the figures describe the model that devices will decode.
        figures = figures_of_round(
            decode_flat(version.frame, model.base.layout)[1],
            initial=self._initial,
            start=model.base,
            measured=[self._updates.decoded[update].measures for update in hashes.values()],
        )
        if pair_cosine is not None:
            figures["cosine_pairs"] = pair_cosine
        # The evaluation under way reads the tensors that this overwrites.
        self.record_evaluation(wait=True)
        model.present(version)
        self._updates.decoded.begin()
        give_back_free_memory()
        lags = self._is_due(round_number) and self._config.eval_may_lag and round_number < self._config.rounds
        if self._is_due(round_number) and not lags:
            tell(f"round {round_number} is being closed: the model of {len(devices)} updates is being evaluated")
        found = self._evaluated(round_number, alone=True) if self._is_due(round_number) and not lags else None
        closed = ClosedRound(
            round=round_number,
            model_id=model.id,
            seconds=elapsed_s(),
            global_sparsity=figures["sparsity_prunable"],
            evaluation=found.evaluation if found else None,
            metrics=figures
            | of_shares(shares)
            | (found.figures if found else {})
            | figures_of(self._store.device_evaluations(round_number=round_number)),
            shares=shares,
        )
        if self._mask_files.wants(round_number):
            self._mask_files.save(round_number, pack_mask(model.state, manifest.prunable))
        self._store.close_round(closed)
        self._updates.drop(round_number)
        if lags:
            self._late.start(lambda: self._evaluated(round_number))

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation that lags behind its round is under way."""
        return self._late.is_running

    def catch_up(self, round_number: int) -> None:
        """Evaluate a closed round's model, which is the present one, if an earlier process died before it had."""
        if not self._config.eval_may_lag or round_number < 1 or not self._is_due(round_number):
            return
        record = self._store.closed_round(round_number)
        if record.test_accuracy is None and record.test_rmse is None:
            self._late.start(lambda: self._evaluated(round_number))

    def record_evaluation(self, *, wait: bool) -> RoundRecord | None:
        """Record an evaluation that lagged behind; returns the round's record if there was one."""
        found = self._late.take(wait=wait)
        if found is None:
            return None
        self._store.note_evaluation(found.round, found.evaluation, found.figures)
        return self._store.closed_round(found.round)

    def _is_due(self, round_number: int) -> bool:
        return round_number == self._config.rounds or round_number % self._config.eval_every == 0

    def _evaluated(self, round_number: int, *, alone: bool = False) -> Evaluated:
        """Evaluate the present model; `alone`: nobody else reads it meanwhile."""
        state = self._model.averaged()
        evaluation = self._model.lend(state, self._evaluate) if alone else self._evaluate(state)
        figures = of_evaluation(evaluation) | evaluate_levels(
            self._evaluate, state, self._manifest, self._model.group_masks
        )
        if state is not self._model.state:
            figures |= of_single_model(self._evaluate(self._model.state))
        return Evaluated(round_number, evaluation, figures)
