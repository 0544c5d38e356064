"""Shows a run on the terminal: one line per closed round, a bar for the open one."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sparsyedge.coordinator.record.records import RoundRecord
from sparsyedge.coordinator.record.situation import Situation
from sparsyedge.coordinator.record.tables import ratio

__all__ = ["LiveProgress"]


class LiveProgress:
    """Observes a run and draws it; prints only the lines if the output is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("updates"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._rounds = 0
        self._first: tuple[int, float] | None = None
        """The first round opened here, and when; the estimate of the remaining time starts there."""

    def __enter__(self) -> Self:
        # Without a terminal, the bar would leave an empty line at the end.
        if self._console.is_interactive:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_interactive:
            self._progress.stop()

    def note(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False)

    def waiting(self, situation: Situation) -> None:
        # While a round is open, the bar shows how many updates are missing.
        if situation.stage == "waiting":
            self._show(f"waiting for devices before round {situation.round}", situation.have, situation.need)

    def device_unfit(self, *, device: str, reason: str) -> None:
        self._console.print(f"{device} does not train: {reason}", style="yellow", markup=False)

    def member_replaced(self, *, round_number: int, device: str, substitute: str) -> None:
        self._console.print(f"round {round_number}: {substitute} takes the place of {device}", markup=False)

    def round_opened(self, *, round_number: int, rounds: int, cohort: tuple[str, ...], learning_rate: float) -> None:
        self._rounds = rounds
        self._first = self._first or (round_number, time.monotonic())
        self._restart()
        self._show(f"round {round_number}/{rounds}, learning rate {learning_rate:.3g}", 0, len(cohort))

    def round_resumed(self, *, round_number: int, rounds: int, accepted: int, cohort: tuple[str, ...]) -> None:
        self._rounds = rounds
        self._restart()
        self._show(f"round {round_number}/{rounds} goes on", accepted, len(cohort))

    def round_extended(self, *, round_number: int, cohort: tuple[str, ...], extension: int) -> None:
        self._console.print(f"round {round_number}: deadline passed with too few updates, extension {extension}")

    def update_accepted(self, *, round_number: int, device: str, update_bytes: int, accepted: int, cohort: int) -> None:
        if self._bar is not None:
            self._progress.update(self._bar, completed=accepted, total=cohort)

    def refused(self, *, round_number: int, device: str, reason: str) -> None:
        self._console.print(f"round {round_number}: refused {device}: {reason}", style="yellow", markup=False)

    def device_quarantined(self, *, device: str, until_round: int, reason: str) -> None:
        if until_round:
            self._console.print(
                f"{device} is left out until round {until_round}: {reason}", style="yellow", markup=False
            )

    def round_closed(self, record: RoundRecord) -> None:
        dense = record.dense_bytes * record.updates
        quality = "acc -" if record.test_accuracy is None else f"acc {record.test_accuracy:.1%}"
        if record.test_rmse is not None:
            quality = f"RMSE {record.test_rmse:.4g}"
        self._console.print(
            # Fits 80 columns up to round 999.
            f"{record.round}/{self._rounds}: {quality}, sparse {record.global_sparsity:.4f}, "
            f"down {ratio(dense, record.bytes_down)}, up {ratio(dense, record.bytes_up)}, {record.seconds:.0f} s"
            f"{self._time_left(record.round)}",
            highlight=False,
        )

    def round_evaluated(self, record: RoundRecord) -> None:
        self._console.print(f"{record.round}/{self._rounds}: {record.quality}", highlight=False)

    def run_ended(self, *, state: str, reason: str) -> None:
        self._restart()
        if state != "finished":
            self._console.print(f"run {state}: {reason}", style="red", markup=False)

    def _time_left(self, closed_round: int) -> str:
        """How long the remaining rounds will take at the pace so far."""
        if self._first is None or closed_round >= self._rounds:
            return ""
        first_round, started_s = self._first
        per_round_s = (time.monotonic() - started_s) / (closed_round - first_round + 1)
        left_s = per_round_s * (self._rounds - closed_round)
        return f"; {left_s / 60:.0f} min left" if left_s >= 90 else f"; {left_s:.0f} s left"

    def _show(self, description: str, completed: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._progress.add_task(description, total=total)
        self._progress.update(self._bar, description=description, completed=completed, total=total)

    def _restart(self) -> None:
        """Remove the bar; the next one starts its own clock."""
        if self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None
