"""Evaluation in a thread of its own, while devices train the next round; the leader's thread records the result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from sparsyedge.coordinator.record.records import Evaluation

__all__ = ["Evaluated", "LateEvaluation"]


class Evaluated(NamedTuple):
    """A round's evaluation, and the figures that belong to it."""

    round: int
    evaluation: Evaluation
    figures: dict[str, float]


class LateEvaluation:
    """At most one evaluation under way. The model must not change before it is done."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: Evaluated | None = None
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Whether `take` would have to wait."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, evaluate: Callable[[], Evaluated]) -> None:
        """Evaluate from now on; `take` the last one first."""
        assert self._thread is None

        def work() -> None:
            try:
                self._found = evaluate()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work, name="evaluation", daemon=True)
        self._thread.start()

    def take(self, *, wait: bool) -> Evaluated | None:
        """The result, once; None if there is none (yet). Raises what the evaluation raised."""
        if self._thread is None or (not wait and self.is_running):
            return None
        self._thread.join()
        self._thread = None
        found, error, self._found, self._error = self._found, self._error, None, None
        if error is not None:
            raise error
        return found
