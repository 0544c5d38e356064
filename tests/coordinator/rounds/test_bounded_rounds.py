"""Rounds with hostile members, closed by the global model: what the whole cohort says, whenever and however often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from fixtures.reports import plain_report

from sparsyedge.benchmarks.simulate.config import SimulatedRunConfig, SimulationConfig
from sparsyedge.coordinator.aggregation.rules import RULES
from sparsyedge.coordinator.aggregation_config import AggregationConfig, RuleName
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.run_model import RunModel, open_model
from sparsyedge.coordinator.model.update_checks import nonzero_budget
from sparsyedge.coordinator.record.records import AdjustmentRecord, Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Offer
from sparsyedge.edge.tensors import State, count_nonzero
from sparsyedge.edge.wire.frame import frame_of

DEVICES = ("d1", "d2", "d3", "d4", "d5", "d6")
HOSTILE = "d6"
WEIGHT = "fc.weight"


class Run:
    """A run and its updates, without a broker; the last device is hostile."""

    def __init__(self, folder: Path, artifacts: Artifacts, initial: State, config: SimulatedRunConfig) -> None:
        self.folder, self.artifacts, self.initial, self.config = folder, artifacts, initial, config
        self.store = Store.create(folder, name="r", fleet="f", rounds=9, dense_bytes=1, config="{}")
        self.parts = self.load(1)

    @property
    def model(self) -> GlobalModel:
        return self.parts.present

    def load(self, round_number: int) -> RunModel:
        return open_model(
            self.config,
            self.artifacts,
            self.initial,
            store=self.store,
            evaluate=lambda state: Evaluation(0.5, 1.0),
            round_number=round_number,
        )

    def accept(self, round_number: int, order: Sequence[str] = DEVICES) -> None:
        model = self.model
        self.store.open_round(round_number, base=model.id, base_nonzeros=1, learning_rate=0.1, cohort=DEVICES)
        for device in order:
            frame = self.frame(device, round_number)
            samples = 10**9 if device == HOSTILE else 10
            report = plain_report("r", round_number)
            offer = Offer(
                run="r", round=round_number, base=model.id, update=blob_of(frame), samples=samples, report=report
            )
            self.parts.updates.verify(offer, frame)
            self.parts.updates.accept(device, offer, frame)

    def frame(self, device: str, round_number: int) -> bytes:
        generator = np.random.default_rng([round_number, *device.encode()])
        far = 500.0 if device == HOSTILE else 0.1
        moved = {
            name: np.abs(tensor + far * generator.standard_normal(tensor.shape)).astype(np.float32)
            for name, tensor in self.model.state.items()
        }
        return frame_of(
            prune_global(moved, [WEIGHT], 0.5),
            run="r",
            round_number=round_number,
            base_id=self.model.id,
            prunable=[WEIGHT],
        )

    def close(self, round_number: int) -> str:
        self.parts.closing.close_round(round_number, DEVICES, elapsed_s=lambda: 1.0)
        return self.model.id


class Runs:
    """Makes runs with a rule."""

    def __init__(self, folder: Path, artifacts: Artifacts, initial: State, stack: ExitStack) -> None:
        self._folder, self._artifacts, self._initial, self._stack = folder, artifacts, initial, stack

    def make(self, name: str, aggregation: AggregationConfig | None, simulation: SimulationConfig | None = None) -> Run:
        folder = self._folder / name
        config = SimulatedRunConfig(
            name="r",
            artifacts="-",
            run_dir=str(folder),
            dataset="-",
            rounds=9,
            cohort_size=len(DEVICES),
            codec="lossless",
            aggregation=aggregation,
            simulation=simulation,
        )
        run = Run(folder, self._artifacts, self._initial, config)
        self._stack.enter_context(closing(run.store))
        return run


@pytest.fixture
def runs(tmp_path: Path, artifacts: Artifacts, initial: State) -> Iterator[Runs]:
    with ExitStack() as stack:
        yield Runs(tmp_path, artifacts, initial, stack)


@pytest.mark.parametrize("rule", list(RULES))
def test_a_round_that_is_closed_again_after_a_restart_gives_the_same_model_and_record(
    runs: Runs, rule: RuleName
) -> None:
    undisturbed, killed = (runs.make(name, AggregationConfig(rule=rule)) for name in ("one", "other"))
    for run in (undisturbed, killed):
        run.accept(1)
    # A new process knows only what is on disk.
    killed.parts = killed.load(1)
    assert killed.close(1) == undisturbed.close(1)
    assert killed.store.adjustments() == undisturbed.store.adjustments() != ()


@pytest.mark.parametrize("rule", list(RULES))
def test_the_order_of_arrival_does_not_matter(runs: Runs, rule: RuleName) -> None:
    first, last = (runs.make(name, AggregationConfig(rule=rule)) for name in ("one", "other"))
    first.accept(1, DEVICES[::-1])
    last.accept(1)
    assert first.close(1) == last.close(1)


@pytest.mark.parametrize("rule", list(RULES))
def test_what_a_hostile_update_adds_is_bounded_in_round_1_and_after_it(runs: Runs, rule: RuleName) -> None:
    run = runs.make("run", AggregationConfig(rule=rule))
    for number in (1, 2, 3):
        run.accept(number)
        run.close(number)
        assert max(float(np.abs(tensor).max()) for tensor in run.model.state.values()) < 30
        assert (run.model.state["bn.running_var"] >= 0).all()
    noted = run.store.adjustments()
    assert [(note.round, note.device, note.weight) for note in noted if note.cut] == [
        (number, HOSTILE, 20) for number in (1, 2, 3)
    ]
    assert all(isinstance(note, AdjustmentRecord) and note.clipped < 0.1 for note in noted if note.cut)


def test_the_log_hears_of_a_device_once_also_after_a_restart(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    run = runs.make("run", AggregationConfig(rule="mean"))
    for number in (1, 2, 3):
        run.accept(number)
        run.close(number)
        run.parts = run.load(number + 1)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line[:30] for line in lines] == [
        "device d6 claims 1000000000 sa",
        "the update of device d6 is cli",
    ]


def test_an_update_that_a_rule_does_without_is_on_record(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    run = runs.make("run", AggregationConfig(rule="krum", byzantine=1))
    run.accept(1)
    run.close(1)
    assert run.store.metrics()[1]["left_out_devices"] == 1
    (note,) = [note for note in run.store.adjustments() if note.clipped == 0]
    assert note.device == HOSTILE
    assert str(note) == "left out; claims 1000000000 samples, counted for 20"
    assert "the update of device d6 is left out by rule krum" in caplog.text


def test_a_mean_of_clipped_updates_has_no_entry_that_no_device_kept(runs: Runs, artifacts: Artifacts) -> None:
    run = runs.make("run", AggregationConfig(rule="clipped"))
    run.accept(1)
    kept = np.zeros(run.initial[WEIGHT].shape, dtype=bool)
    for device in DEVICES:
        hashes = run.parts.updates.decode(1, (device,))
        base = run.model.base
        update = run.parts.updates.decoded.update(hashes[device], base).tensors(base.layout)
        assert count_nonzero(update, [WEIGHT]) <= nonzero_budget(artifacts.manifest)
        kept |= update[WEIGHT] != 0
    run.close(1)
    assert run.store.metrics()[1]["clipped_devices"] > 1
    assert not run.model.state[WEIGHT][~kept].any()


def test_a_simulation_believes_everything_unless_it_is_told_not_to(runs: Runs) -> None:
    simulated = SimulationConfig(devices=6)
    guarded = SimulationConfig(devices=6, norm_guard=True)
    plain = AggregationConfig(rule="mean")
    ids = {}
    for name, aggregation, simulation in (
        ("believes", None, simulated),
        ("rule", plain, simulated),
        ("fleet with that rule", plain, None),
        ("guarded", None, guarded),
        ("fleet", None, None),
    ):
        run = runs.make(name, aggregation, simulation)
        run.accept(1)
        ids[name] = run.close(1)
        assert bool(run.store.adjustments()) == (name != "believes")
    assert ids["rule"] == ids["fleet with that rule"] != ids["believes"]
    assert ids["guarded"] == ids["fleet"]
