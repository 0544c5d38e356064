"""Evaluations that lag: the next round is open before they are done, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.reports import plain_report

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.run_model import RunModel, open_model
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Offer
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.wire.frame import frame_of

LIMIT_S = 300.0


class Run:
    """A run of one device; evaluations wait until `go` is set, and note which models they saw."""

    def __init__(self, folder: Path, artifacts: Artifacts, initial: State, *, rounds: int = 3) -> None:
        self.artifacts, self.initial = artifacts, initial
        self.config = RunConfig(
            name="r",
            artifacts="-",
            run_dir=str(folder),
            dataset="-",
            rounds=rounds,
            cohort_size=1,
            codec="lossless",
            eval_may_lag=True,
        )
        self.store = Store.create(folder, name="r", fleet="f", rounds=rounds, dense_bytes=1, config="{}")
        self.go = threading.Event()
        self.seen: list[str] = []
        self.error: Exception | None = None
        self.parts = self.load(1)

    def load(self, round_number: int) -> RunModel:
        return open_model(
            self.config,
            self.artifacts,
            self.initial,
            store=self.store,
            evaluate=self.evaluate,
            round_number=round_number,
        )

    def evaluate(self, state: State) -> Evaluation:
        assert self.go.wait(LIMIT_S)
        if self.error:
            raise self.error
        self.seen.append(model_id(state))
        return Evaluation(len(self.seen) / 10, 1.0)

    def play(self, number: int) -> None:
        self.deliver(number)
        self.parts.closing.close_round(number, ("d1",), elapsed_s=lambda: 1.0)

    def deliver(self, number: int) -> None:
        model, updates = self.parts.present, self.parts.updates
        self.store.open_round(number, base=model.id, base_nonzeros=1, learning_rate=0.1, cohort=("d1",))
        moved = {name: tensor * (1 + number / 10) for name, tensor in model.state.items()}
        pruned = prune_global(moved, ["fc.weight"], 0.5)
        frame = frame_of(pruned, run="r", round_number=number, base_id=model.id, prunable=["fc.weight"])
        report = plain_report("r", number)
        offer = Offer(run="r", round=number, base=model.id, update=blob_of(frame), samples=1, report=report)
        updates.verify(offer, frame)
        updates.accept("d1", offer, frame)

    def accuracies(self) -> list[float | None]:
        return [record.test_accuracy for record in self.store.rounds()]


@pytest.fixture
def run(tmp_path: Path, artifacts: Artifacts, initial: State) -> Iterator[Run]:
    made = Run(tmp_path / "run", artifacts, initial)
    with closing(made.store):
        yield made
        made.go.set()


def test_a_round_is_closed_before_its_evaluation_is_done(run: Run) -> None:
    run.play(1)
    assert run.accuracies() == [None]
    assert run.parts.closing.record_evaluation(wait=False) is None
    run.go.set()
    record = run.parts.closing.record_evaluation(wait=True)
    assert record is not None
    assert (record.round, record.test_accuracy) == (1, 0.1)
    assert run.accuracies() == [0.1]
    assert run.seen == [record.model_id]


def test_the_next_close_waits_for_it_and_the_last_round_is_evaluated_at_once(run: Run) -> None:
    run.go.set()
    for number in (1, 2, 3):
        run.play(number)
    assert run.accuracies() == [0.1, 0.2, 0.3]
    assert run.seen == [record.model_id for record in run.store.rounds()]


def test_what_an_evaluation_raises_reaches_the_run(run: Run) -> None:
    run.error = OSError("the data are gone")
    run.play(1)
    run.go.set()
    with pytest.raises(OSError, match="the data are gone"):
        run.parts.closing.record_evaluation(wait=True)


def test_the_updates_are_closed_whatever_an_evaluation_raises(run: Run) -> None:
    run.error = OSError("the data are gone")
    run.play(1)
    run.deliver(2)
    log = run.config.run_path / "updates/2.log"
    assert log in open_files()
    run.go.set()
    with pytest.raises(OSError, match="the data are gone"):
        run.parts.close()
    assert log not in open_files()


def open_files() -> set[Path]:
    """The files that this process has open."""
    return {path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def test_a_process_that_died_before_the_evaluation_is_made_up_for(run: Run) -> None:
    run.play(1)
    run.parts = run.load(2)
    run.go.set()
    assert run.parts.closing.record_evaluation(wait=True) is not None
    assert run.accuracies()[0] is not None
    run.parts.close()
