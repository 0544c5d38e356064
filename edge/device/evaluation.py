"""Evaluates models on a device's own samples, with the plain graph that any onnxruntime runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import UNSET, UnsetType

from sparsyedge.edge.data import Samples
from sparsyedge.edge.inference.eval_session import EvalSession
from sparsyedge.edge.inference.samples_score import score_samples
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.messages import MAX_LOSS, Score
from sparsyedge.edge.tensors import State
from sparsyedge.edge.training.trainer import JobCancelled

__all__ = ["EvaluationDesk"]

log = logging.getLogger(__name__)


class EvaluationDesk:
    """Keeps one session open, without weights: it holds those only while it evaluates."""

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._manifest_sha256 = ""
        self._session: EvalSession | None = None

    def is_ready_for(self, manifest_sha256: str) -> bool:
        """Whether the session is open already: then nobody needs to look for its file, and hash it, in every round."""
        return self._session is not None and self._manifest_sha256 == manifest_sha256

    def score(
        self,
        artifacts: Artifacts,
        manifest_sha256: str,
        state: State,
        samples: Samples,
        *,
        keep_going: Callable[[], bool],
    ) -> Score | UnsetType:
        """Score a state; UNSET if it is not finite. Raises JobCancelled once `keep_going` says no."""
        if self._session is None or not self.is_ready_for(manifest_sha256):
            self._session = None
            self._session = EvalSession(artifacts, threads=self._threads)
            self._manifest_sha256 = manifest_sha256

        def check() -> None:
            if not keep_going():
                raise JobCancelled("the round was abandoned in an evaluation")

        self._session.load(state)
        try:
            loss, accuracy = score_samples(self._session, samples, before_batch=check)
        finally:
            self._session.unload()
        if not 0 <= loss <= MAX_LOSS:
            log.warning("evaluation: the loss is %g, which is not reported", loss)
            return UNSET
        return Score(loss=loss, accuracy=UNSET if accuracy is None else accuracy)
