"""One canonical model: the coordinator continues with what devices decode, whatever the codec loses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from fixtures.reports import plain_report

from sparsyedge.coordinator.aggregation import update_checks
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.fleet.announcements import Announcements
from sparsyedge.coordinator.fleet.publisher import Publisher
from sparsyedge.coordinator.model.deliver import deliver_model
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.model_files import ModelFiles
from sparsyedge.coordinator.model.run_model import RunModel, open_model
from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.rounds.events import OpenRound
from sparsyedge.edge.errors import ArtifactError, FrameError, RunError
from sparsyedge.edge.inference.description import read_description
from sparsyedge.edge.model.artifacts import Artifacts, Manifest
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.channel import Channel
from sparsyedge.edge.protocol.chunks import Assembly, blob_of
from sparsyedge.edge.protocol.messages import Offer, RoundTask, decode
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.tensors import State, Tensors, count_nonzero, model_id
from sparsyedge.edge.wire.codecs import CODECS, Codec
from sparsyedge.edge.wire.envelope import Mask
from sparsyedge.edge.wire.error_feedback import Coded, encode_with_feedback, unpack_residual
from sparsyedge.edge.wire.frame import decode_frame, read_header

DEVICES = ("d1", "d2")
WEIGHT = "fc.weight"


class Device:
    """Keeps fetched models like a real device, and answers with small changes to the kept weights."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        self.name = name
        self.manifest = manifest
        self.held: dict[str, State] = {}
        self.residual: Tensors = {}
        self.fetched = b""

    def fetch(self, model: GlobalModel, initial: State) -> State:
        """Fetch the model as a device would: as a difference to the latest model it holds, or else whole."""
        if model.is_initial:
            return initial
        delta = next((delta for delta in model.deltas if delta.base in self.held), None)
        self.fetched = model.delta_frame(delta) if delta else model.frame()
        base = self.held[delta.base] if delta else None
        assert blob_of(self.fetched) == (delta.model if delta else model.blob)
        state = decode_frame(self.fetched, self.manifest.shapes, base).state
        assert model_id(state) == model.id
        self.held[model.id] = state
        return state

    def update(self, state: State, model: GlobalModel, *, codec: Codec, round_number: int, move: float) -> bytes:
        generator = np.random.default_rng([round_number, *self.name.encode()])
        trained = {
            name: (tensor + move * (tensor != 0) * generator.standard_normal(tensor.shape)).astype(np.float32)
            for name, tensor in state.items()
        }
        trained["bn.running_var"] = np.abs(trained["bn.running_var"])
        coded = encode_with_feedback(
            prune_global(trained, [WEIGHT], 0.5),
            self.residual,
            run="r",
            round_number=round_number,
            base_id=model.id,
            base=None if model.is_initial else state,
            codec=codec,
            prunable=[WEIGHT],
        )
        self.keep(coded)
        return coded.frame

    def keep(self, coded: Coded) -> None:
        """Keep the update's rounding error for the next one."""
        self.residual = unpack_residual(coded.residual, {WEIGHT: self.manifest.shapes[WEIGHT]})


class FakeLink:
    """Keeps what a broker would retain."""

    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.retained[topic] = payload


class Run:
    """A global model and its fleet, without a broker in between."""

    def __init__(
        self, folder: Path, artifacts: Artifacts, initial: State, codec: Codec, *, given: str | None = None
    ) -> None:
        self.config = RunConfig(
            name="r",
            artifacts="-",
            run_dir=str(folder),
            dataset="-",
            rounds=99,
            cohort_size=2,
            codec=codec,
            initial=given,
        )
        self.artifacts = artifacts
        self.initial = initial
        self.store = Store.create(folder, name="r", fleet="f", rounds=99, dense_bytes=1, config="{}")
        self.parts = self.load(1)
        self.devices = [Device(name, artifacts.manifest) for name in DEVICES]
        self.round = 0
        self.move = 0.01

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

    def kept_frame(self, round_number: int, device: str) -> bytes:
        kept = self.store.kept_updates(round_number, (device,))[device]
        return UpdateFiles(self.config.run_path).load(round_number, position=kept.position, size=kept.bytes)

    def accept_updates(self) -> None:
        """Open the next round and take an update from every device."""
        self.round += 1
        model = self.model
        self.store.open_round(
            self.round, base=model.id, base_nonzeros=model.nonzeros, learning_rate=0.1, cohort=DEVICES
        )
        for device in self.devices:
            state = device.fetch(model, self.initial)
            frame = device.update(state, model, codec=self.config.codec, round_number=self.round, move=self.move)
            offer = offer_of(frame, self.round, model.id)
            self.parts.updates.verify(offer, frame)
            self.parts.updates.accept(device.name, offer, frame)

    def deliver(self) -> None:
        deliver_model(
            self.config, self.artifacts, self.model, store=self.store, evaluate=lambda state: Evaluation(0.5, 1.0)
        )

    def close(self) -> None:
        self.parts.closing.close_round(self.round, DEVICES, elapsed_s=lambda: 1.0)

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.accept_updates()
            self.close()


def offer_of(frame: bytes, round_number: int, base: str) -> Offer:
    report = plain_report("r", round_number)
    return Offer(run="r", round=round_number, base=base, update=blob_of(frame), samples=3, report=report)


@pytest.fixture(params=CODECS)
def run(request: pytest.FixtureRequest, tmp_path: Path, artifacts: Artifacts, initial: State) -> Iterator[Run]:
    run = Run(tmp_path / "run", artifacts, initial, request.param)
    with closing(run.store):
        yield run


def test_every_device_ends_bit_identical_with_the_coordinator(run: Run) -> None:
    run.play(5)
    for device in run.devices:
        # fetch() compares the model's id in every round.
        assert model_id(device.fetch(run.model, run.initial)) == run.model.id
    assert len(set(run.devices[0].held)) == 5


def test_updates_are_nested_from_round_2_and_models_from_round_3(run: Run) -> None:
    masks: list[tuple[Mask, Mask | None]] = []
    for number in range(1, 5):
        run.accept_updates()
        up = read_header(run.kept_frame(number, "d1")).weights[0].mask
        down = read_header(run.devices[0].fetched).weights[0].mask if number > 1 else None
        masks.append((up, down))
        run.close()
    assert [up is Mask.DROPPED for up, _ in masks] == [False, True, True, True]
    assert [down is Mask.DROPPED for _, down in masks] == [False, False, True, True]


def test_frames_carry_the_codec_of_the_run(run: Run) -> None:
    codec = run.config.codec
    run.play(1)
    run.accept_updates()
    assert read_header(run.kept_frame(2, "d1")).codec == codec
    run.close()
    run.accept_updates()
    assert read_header(run.devices[0].fetched).codec == codec


def test_a_device_a_few_rounds_behind_gets_a_difference_and_an_older_one_the_whole(run: Run) -> None:
    late = Device("late", run.artifacts.manifest)
    run.play(1)
    late.fetch(run.model, run.initial)
    run.play(3)
    late.fetch(run.model, run.initial)
    assert read_header(late.fetched).needs_base
    run.play(4)
    late.fetch(run.model, run.initial)
    header = read_header(late.fetched)
    assert (header.needs_base, header.codec) == (False, "lossless")


def test_a_round_that_is_closed_again_after_a_crash_gives_the_same_model(run: Run) -> None:
    run.play(2)
    run.accept_updates()
    log = UpdateFiles(run.config.run_path).path(3)
    kept = log.read_bytes()
    run.close()
    expected, deltas = run.model.id, run.model.deltas
    # The crash came after the model was written and before the round was recorded.
    log.write_bytes(kept)
    run.parts = run.load(3)
    run.close()
    assert run.model.id == expected
    assert run.model.deltas == deltas


def test_a_model_that_was_lent_is_whole_again_with_the_same_bits(run: Run) -> None:
    run.play(2)
    before = {name: tensor.copy() for name, tensor in run.model.state.items()}

    def spoil(state: State) -> str:
        for tensor in state.values():
            tensor.fill(7.0)
        raise FrameError("the evaluation failed")

    with pytest.raises(FrameError, match="the evaluation failed"):
        run.model.lend(run.model.state, spoil)
    assert model_id(run.model.state) == run.model.id
    assert all(np.array_equal(run.model.state[name], tensor) for name, tensor in before.items())


def test_a_state_that_is_not_the_models_own_is_not_lent(run: Run) -> None:
    other = dict(run.model.state)
    assert run.model.lend(other, lambda state: state) is other


@pytest.mark.parametrize("residual", [b"too short", b"SEF5" + bytes(100)])
def test_a_residual_that_is_damaged_or_of_another_version_stops_the_run_before_a_round_is_trained(
    run: Run, residual: bytes
) -> None:
    run.play(1)
    files = ModelFiles(run.config.run_path)
    files.save(msgspec.structs.replace(files.load(2), residual=residual))
    with pytest.raises(RunError, match=r"the model of round 2 in .* cannot be read: .*; continue the run with"):
        run.load(2)


def test_a_coordinator_that_starts_again_goes_on_as_if_it_had_not(
    run: Run, tmp_path: Path, artifacts: Artifacts, initial: State
) -> None:
    undisturbed = Run(tmp_path / "other", artifacts, initial, run.config.codec)
    with closing(undisturbed.store):
        undisturbed.play(5)
    run.play(3)
    before = (run.model.id, run.model.blob, run.model.deltas, run.model.nonzeros)
    run.parts = run.load(4)
    assert (run.model.id, run.model.blob, run.model.deltas, run.model.nonzeros) == before
    run.play(2)
    assert run.model.id == undisturbed.model.id


def test_a_run_that_stops_between_evaluations_delivers_a_model_that_knows_its_accuracy(
    tmp_path: Path, artifacts: Artifacts, initial: State
) -> None:
    run = Run(tmp_path / "run", artifacts, initial, "bf16")
    with closing(run.store):
        run.config = msgspec.structs.replace(run.config, eval_every=10)
        run.parts = run.load(1)
        run.play(2)
        assert run.store.rounds()[-1].test_accuracy is None
        deliver_model(
            run.config, run.artifacts, run.model, store=run.store, evaluate=lambda state: Evaluation(0.5, 1.0)
        )
    described = read_description(tmp_path / "run" / "model.onnx")
    assert (described.round, described.accuracy) == (2, 0.5)


@pytest.mark.parametrize("codec", CODECS)
def test_a_given_model_is_sent_in_round_1_and_the_next_one_as_a_difference_to_it(
    codec: Codec, tmp_path: Path, artifacts: Artifacts, initial: State
) -> None:
    given = prune_global(initial, [WEIGHT], 0.5)
    run = Run(tmp_path / "run", artifacts, given, codec, given="model.npz")
    with closing(run.store):
        run.accept_updates()
        assert not read_header(run.devices[0].fetched).needs_base
        assert read_header(run.kept_frame(1, "d1")).codec == codec
        run.close()
        run.parts = run.load(2)
        run.accept_updates()
        header = read_header(run.devices[0].fetched)
        assert (header.needs_base, header.codec) == (True, codec)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, artifacts: Artifacts, initial: State) -> None:
    with pytest.raises(ArtifactError, match="run `sparsyedge export` again"):
        Run(tmp_path / "run", artifacts, prune_global(initial, [WEIGHT], 0.5), "lossless")


def test_the_store_counts_values_both_ways(run: Run) -> None:
    run.play(2)
    first, second = run.store.rounds()
    entries = sum(tensor.size for tensor in run.initial.values())
    others = entries - run.initial[WEIGHT].size
    held = run.devices[0].fetch(run.model, run.initial)
    assert first.nonzeros_down == 2 * entries
    assert first.nonzeros_up == 2 * (run.initial[WEIGHT].size // 2 + others)
    assert second.nonzeros_down < first.nonzeros_down
    assert run.model.nonzeros == count_nonzero(held, [WEIGHT]) + others


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_moves_below_the_codecs_resolution_arrive_in_time(
    codec: Codec, tmp_path: Path, artifacts: Artifacts, initial: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The mean of round 1 has more non-zeros than one device may send, and here devices keep all of them.
    monkeypatch.setattr(update_checks, "nonzero_budget", lambda manifest: initial[WEIGHT].size)
    run = Run(tmp_path / "run", artifacts, initial, codec)
    with closing(run.store):
        run.play(2)
        start = run.devices[0].fetch(run.model, initial)[WEIGHT].copy()
        kept = np.abs(start) > 0.5
        # Each round moves a weight by a thousandth. bf16 has 256 steps per octave, so a single move would be lost.
        drift = np.where(kept, 0.001 * start, 0).astype(np.float32)
        wanted = start.copy()
        for _ in range(30):
            run.round += 1
            run.store.open_round(run.round, base=run.model.id, base_nonzeros=1, learning_rate=0.1, cohort=DEVICES)
            wanted += drift
            for device in run.devices:
                state = device.fetch(run.model, initial)
                moved = {**state, WEIGHT: state[WEIGHT] + drift}
                coded = encode_with_feedback(
                    moved,
                    device.residual,
                    run="r",
                    round_number=run.round,
                    base_id=run.model.id,
                    base=state,
                    codec=codec,
                    prunable=[WEIGHT],
                )
                device.keep(coded)
                offer = offer_of(coded.frame, run.round, run.model.id)
                run.parts.updates.verify(offer, coded.frame)
                run.parts.updates.accept(device.name, offer, coded.frame)
            run.close()
        ended = run.devices[0].fetch(run.model, initial)[WEIGHT]
    travelled = (ended - start)[kept] / (wanted - start)[kept]
    assert abs(np.median(travelled) - 1) < 0.15


def test_a_broker_that_comes_back_after_the_close_of_a_round_gets_that_rounds_frames(
    tmp_path: Path, artifacts: Artifacts, initial: State
) -> None:
    run = Run(tmp_path / "run", artifacts, initial, "lossless")
    with closing(run.store):
        run.play(3)
        link = FakeLink()
        publisher = Publisher(cast("Channel", link), Topics("lab"))
        announcements = Announcements(run.config, artifacts, publisher)
        announcements.open_round(OpenRound(4, DEVICES, 60.0), run.model, left_s=60.0)
        assert len(run.model.deltas) == 2
        run.play(1)
        publisher.renew()
    task = decode(link.retained[Topics("lab").round], RoundTask)
    for blob in (task.model, *(delta.model for delta in task.deltas)):
        assembly = Assembly(blob)
        for index in range(blob.chunks):
            assembly.put(index, link.retained[Topics("lab").chunk(blob.sha256, index)])
        assert len(assembly.content()) == blob.bytes


def test_the_codec_of_a_run_file_is_checked(tmp_path: Path) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"codec"):
        msgspec.convert(
            {
                "name": "r",
                "artifacts": "a",
                "run_dir": "d",
                "dataset": "x",
                "rounds": 1,
                "cohort_size": 1,
                "codec": "x",
            },
            RunConfig,
        )


def test_groups_with_targets_of_their_own_are_evaluated_as_each_begins(
    tmp_path: Path, artifacts: Artifacts, initial: State
) -> None:
    method = msgspec.structs.replace(artifacts.manifest.method, sparsities=(0.75, 0.5), shares=(1, 1))
    manifest = msgspec.structs.replace(artifacts.manifest, method=method)
    run = Run(tmp_path / "run", dataclasses.replace(artifacts, manifest=manifest), initial, "lossless")
    with closing(run.store):
        run.parts.closing._evaluate = lambda state: Evaluation(count_nonzero(state, [WEIGHT]) / state[WEIGHT].size, 1.0)
        run.play(1)
        figures = run.store.metrics()[1]
    assert figures["accuracy_at/0.5"] == pytest.approx(0.5, abs=0.1)
    assert figures["accuracy_at/0.75"] == pytest.approx(0.25, abs=0.1)
