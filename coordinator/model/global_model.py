"""The model of a run: its present version, its frames for the fleet, and the step from an average to the next version.

There is one canonical model. With a lossy codec it is the model that devices decode, not the average: the coordinator
encodes the average, continues with the decoded frame, and adds the rounding error to the next average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from sparsyedge.coordinator.aggregation.round_base import RoundBase, layout_of
from sparsyedge.coordinator.aggregation.server_optimizer import make_optimizer
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.averaged_model import mean_of_frames
from sparsyedge.coordinator.model.group_models import GroupModel, first_masks, group_states
from sparsyedge.coordinator.model.model_files import ModelFiles, Version
from sparsyedge.edge.errors import ArtifactError, DamagedFileError, RunError
from sparsyedge.edge.inference.eval_session import Lent
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob, Delta
from sparsyedge.edge.tensors import State, Tensors, model_id
from sparsyedge.edge.wire.error_feedback import Coded, encode_with_feedback, unpack_residual
from sparsyedge.edge.wire.frame import decode_frame, frame_of, read_header

__all__ = ["GlobalModel"]

Result = TypeVar("Result")

FIRST_TRAINED = 2
"""The round that starts from the first averaged model."""


class GlobalModel:
    """The present version: its state, and its frames for the fleet. Updates are differences to this state."""

    id: str
    base: RoundBase
    """Its tensors, as the base of a round's updates."""
    nonzeros: int
    """How many of its values each device receives."""
    blob: Blob
    deltas: tuple[Delta, ...] = ()
    """Differences for devices that hold an earlier version, the latest of those versions first."""
    groups: tuple[GroupModel, ...] = ()
    """The models of groups of devices that download their own."""
    group_masks: bytes = b""
    """What is fixed about them (group_models.py)."""

    def __init__(
        self,
        config: RunConfig,
        artifacts: Artifacts,
        initial: State,
        *,
        round_number: int = 1,
        into: State | None = None,
    ) -> None:
        """Open the version that a round starts from; round 1 starts from `initial`. Decodes into `into`, if given.

        `initial` is the checkpoint's model, unless the config names another.
        """
        self._config = config
        self._manifest = artifacts.manifest
        self._files = ModelFiles(config.run_path, averaged=config.delivery.average)
        self._optimizer = make_optimizer(config.server_optimizer, artifacts.manifest)
        identity = model_id(initial)
        if config.initial is None and identity != self._manifest.initial_model:
            raise ArtifactError(
                f"the checkpoint in {artifacts.directory} holds model {identity[:12]}, the manifest says "
                f"{self._manifest.initial_model[:12]}; run `sparsyedge export` again"
            )
        # Devices read the checkpoint's model from the artifacts and keep no frame of it, so it cannot be a base.
        # What no step changes they do have from there, in every round.
        is_checkpoint = identity == self._manifest.initial_model
        self._first_sent = FIRST_TRAINED if is_checkpoint else 1
        self._installed = {name: initial[name] for name in self._manifest.frozen if is_checkpoint}
        if round_number == 1:
            frame = self._encode(initial, round_number=1, base_id=identity)
            self._files.save(Version(round=1, model_id=identity, frame=frame))
        self._layout = layout_of(self._manifest)
        self._state = self._layout.empty() if into is None else into
        self.present(self._files.load(round_number))

    @property
    def is_initial(self) -> bool:
        """Whether devices already have it, as the checkpoint among the artifacts."""
        return self.id == self._manifest.initial_model

    @property
    def rounds(self) -> int:
        """The last round that went into it; 0 for the model that the run began with."""
        return self._round - 1

    @property
    def state(self) -> State:
        """The tensors of the present version; callers must not change them."""
        return self._state

    def averaged(self) -> State:
        """Return the mean of the last versions, as many as the config says; callers must not change it."""
        count = self._config.delivery.average
        if count == 1 or self._round < FIRST_TRAINED:
            return self._state
        frames = self._files.last_frames(self._round, count, since=FIRST_TRAINED)
        return self._mean(frames)

    def lend(self, state: State, evaluate: Callable[[State], Result]) -> Result:
        """Evaluate a state; the present one without a second copy of its weights.

        They are overwritten and afterwards read from the version's file again: nobody else may use them meanwhile.
        """
        if state is not self._state:
            return evaluate(state)
        try:
            return evaluate(Lent(state))
        finally:
            decode_frame(self.frame(), self._manifest.shapes, into=state)

    def averaged_frame(self) -> bytes:
        """Return that mean as a frame that stands alone."""
        state = self.averaged()
        if state is self._state:
            return self.frame()
        return self._encode(state, round_number=self._round, base_id=model_id(state))

    def frame(self) -> bytes:
        """Return the present version as a frame that stands alone."""
        return self.frame_reader()()

    def frame_reader(self) -> Callable[[], bytes]:
        """Return a function that reads this version's frame, even after another version has taken its place."""
        return partial(self._read_frame, self._round)

    def _read_frame(self, round_number: int) -> bytes:
        return self._files.load(round_number).frame

    def delta_frame(self, delta: Delta) -> bytes:
        """Return the frame of one of the present deltas."""
        return self._delta_frames[delta.base]

    def next_version(self, average: Tensors, *, round_number: int) -> Version:
        """Make the version that the next round starts from, and save it."""
        mean = self._broadcast(self._optimizer.step(self._state, average), round_number)
        first = round_number == self._first_sent
        coded = self._code(mean, base=None if first else self._state, round_number=round_number)
        identity = model_id(coded.decoded)
        version = Version(
            round=round_number,
            model_id=identity,
            frame=self._encode(coded.decoded, round_number=round_number, base_id=identity),
            delta=b"" if first else coded.frame,
            residual=coded.residual,
            optimizer=self._optimizer.pack(),
            group_masks=self.group_masks or first_masks(self._manifest, coded.decoded),
        )
        self._files.save(version)
        return version

    def _broadcast(self, model: Tensors, round_number: int) -> Tensors:
        """Return the model for the next round: itself, or its mean with the versions before it when that is due."""
        delivery = self._config.delivery
        if delivery.broadcast_every is None or (round_number - 1) % delivery.broadcast_every:
            return model
        frames = self._files.last_frames(round_number - 1, delivery.average - 1, since=FIRST_TRAINED)
        newest = self._encode(dict(model), round_number=round_number, base_id=self.id)
        return self._mean([*frames, newest])

    def _mean(self, frames: Iterable[bytes]) -> State:
        manifest = self._manifest
        return mean_of_frames(frames, self._layout, manifest.method, positions=manifest.positions)

    def present(self, version: Version) -> None:
        """Make a saved version the present one. Overwrites the tensors of the one before."""
        decode_frame(version.frame, self._manifest.shapes, into=self._state)
        self.base = RoundBase(self._manifest, self._layout, self._state)
        self._round = version.round
        self._residual = self._unpack_residual(version)
        self._optimizer.unpack(version.optimizer)
        self.id = version.model_id
        self.blob = blob_of(version.frame)
        self.nonzeros = read_header(version.frame).entries
        frames = {base: frame for base, frame in self._differences(version) if len(frame) < len(version.frame)}
        self._delta_frames = frames
        self.deltas = tuple(Delta(base=base, model=blob_of(frame)) for base, frame in frames.items())
        self.group_masks = version.group_masks
        self.groups = tuple(self._group_models())

    def nonzeros_for(self, cohort: Sequence[str]) -> float:
        """Return how many values a device of the cohort receives on average."""
        if not self.groups or not cohort:
            return self.nonzeros
        sizes = {group.sparsity: group.nonzeros for group in self.groups}
        method = self._manifest.method
        found = [sizes.get(method.sparsity_of(device, self._round), self.nonzeros) for device in cohort]
        return sum(found) / len(found)

    def _group_models(self) -> Iterator[GroupModel]:
        """Yield the model of each group that downloads its own; none for the model that the run begins with."""
        if self._manifest.method.download != "own" or self._round < FIRST_TRAINED:
            return
        for target, state in group_states(self._manifest, self._state, self.group_masks):
            identity = model_id(state)
            frame = self._encode(state, round_number=self._round, base_id=identity)
            yield GroupModel(target, identity, frame, blob_of(frame), read_header(frame).entries)

    def _differences(self, version: Version) -> Iterator[tuple[str, bytes]]:
        """Yield the id of each earlier version, latest first, and the frame of the difference to it.

        Last comes the checkpoint's model, if some of it never changes: every device holds it.
        """
        for before in self._files.before(version.round, since=self._first_sent):
            if before.model_id == version.model_id:
                continue
            if before.round == version.round - 1:
                yield before.model_id, version.delta
            else:
                base = decode_frame(before.frame, self._manifest.shapes).state
                frame = self._encode(self._state, round_number=version.round, base_id=before.model_id, base=base)
                yield before.model_id, frame
        if self._installed and not self.is_initial:
            initial = self._manifest.initial_model
            yield (
                initial,
                self._encode(self._state, round_number=version.round, base_id=initial, base=self._installed),
            )

    def _unpack_residual(self, version: Version) -> Tensors:
        shapes = {name: self._manifest.shapes[name] for name in self._manifest.prunable}
        try:
            return unpack_residual(version.residual, shapes)
        except DamagedFileError as error:
            raise RunError(
                f"the model of round {version.round} in {self._config.run_path} cannot be read: {error}; continue the "
                f"run with the version of sparsyedge that began it, or start a new one"
            ) from error

    def _code(self, mean: Tensors, *, base: State | None, round_number: int) -> Coded:
        return encode_with_feedback(
            mean,
            self._residual,
            run=self._config.name,
            round_number=round_number,
            base_id=self.id,
            base=base,
            codec=self._config.codec,
            prunable=self._manifest.prunable,
        )

    def _encode(self, state: Tensors, *, round_number: int, base_id: str, base: State | None = None) -> bytes:
        """Encode a frame without loss."""
        return frame_of(
            state,
            run=self._config.name,
            round_number=round_number,
            base_id=base_id,
            base=base,
            prunable=self._manifest.prunable,
        )
