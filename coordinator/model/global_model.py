"""The model of a run: its present version on disk, and how the next one comes from accepted updates.

There is one canonical model. With a lossy codec it is what devices decode, not what was averaged: the coordinator
encodes the average, goes on with the decoded frame, and adds what was rounded away to the next average.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

from sparsyedge.coordinator.aggregation.influence import Influence, Share
from sparsyedge.coordinator.aggregation.method_rules import combine
from sparsyedge.coordinator.aggregation.rules import RoundContext, make_rule
from sparsyedge.coordinator.aggregation.server_optimizer import make_optimizer
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.evaluate import global_sparsity
from sparsyedge.coordinator.model.mask_files import MaskFiles
from sparsyedge.coordinator.model.model_files import ModelFiles, Version
from sparsyedge.coordinator.model.update_checks import verify_update
from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.metrics import LEVEL_PREFIX, RoundMetrics, of_evaluation, of_shares, pack_mask
from sparsyedge.coordinator.record.records import Evaluation
from sparsyedge.coordinator.record.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.edge.errors import ArtifactError, RunError
from sparsyedge.edge.inference.delivery import write_models
from sparsyedge.edge.inference.description import Origin
from sparsyedge.edge.inference.preprocessing import MODEL_NAME
from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.model.prune import prune_global
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob, Delta, Offer
from sparsyedge.edge.storage import sha256_file, write_atomically
from sparsyedge.edge.tensors import State, Tensors, model_id
from sparsyedge.edge.wire.error_feedback import Coded, encode_with_feedback, unpack_residual
from sparsyedge.edge.wire.frame import decode_frame, decode_lazily, frame_of, read_header

__all__ = ["Evaluate", "GlobalModel"]

FRAME_NAME = "model.frame"
FIRST_TRAINED = 2
"""The round that starts from the first averaged model."""

Evaluate = Callable[[State], Evaluation]


class GlobalModel:
    """The present version: its state, which updates are differences to, and its frames for the fleet."""

    id: str
    nonzeros: int
    """Values of it that travel to a device."""
    blob: Blob
    deltas: tuple[Delta, ...] = ()
    """How devices that hold an earlier version get this one, the latest of those first."""

    def __init__(
        self,
        config: RunConfig,
        artifacts: Artifacts,
        initial: State,
        *,
        store: Store,
        evaluate: Evaluate,
        round_number: int = 1,
    ) -> None:
        """The model that a round starts from: the initial one, or the version that an earlier process left on disk.

        The initial one is the checkpoint's, unless the config names another.
        """
        self._config = config
        self._artifacts = artifacts
        self._manifest = artifacts.manifest
        self._store = store
        self._evaluate = evaluate
        self._initial = initial
        self._mask_files = MaskFiles(config.run_path, rounds=config.rounds)
        self._updates = UpdateFiles(config.run_path)
        bounded = config.bounded_aggregation
        self._rule = None if bounded is None else make_rule(bounded, self._manifest.method)
        self._influence = None
        if bounded is not None and self._rule is not None:
            factor = bounded.clip or self._rule.clip
            self._influence = Influence(bounded, self._manifest, factor=factor, told=store.adjusted_devices())
        self._model_files = ModelFiles(config.run_path)
        self._optimizer = make_optimizer(config.server_optimizer, artifacts.manifest)
        identity = model_id(initial)
        if config.initial is None and identity != self._manifest.initial_model:
            raise ArtifactError(
                f"the checkpoint in {artifacts.directory} holds model {identity[:12]}, the manifest says "
                f"{self._manifest.initial_model[:12]}; run `sparsyedge export` again"
            )
        # The checkpoint's model is none that devices keep beside those that they got.
        self._first_sent = FIRST_TRAINED if identity == self._manifest.initial_model else 1
        self._updates.drop(round_number - 1)
        if round_number == 1:
            frame = self._encode(initial, round_number=1, base_id=identity)
            self._model_files.save(Version(round=1, model_id=identity, frame=frame))
        self._present(self._model_files.load(round_number))

    @property
    def is_initial(self) -> bool:
        """Whether devices have it already, as the checkpoint among the artifacts."""
        return self.id == self._manifest.initial_model

    @property
    def state(self) -> State:
        """The tensors of the present version; nobody may change them."""
        return self._state

    def frame(self) -> bytes:
        """The present version as a frame that stands alone."""
        return self.frame_reader()()

    def frame_reader(self) -> Callable[[], bytes]:
        """Reads the frame of the present version, also when that is no longer the present one."""
        return partial(self._read_frame, self._round)

    def _read_frame(self, round_number: int) -> bytes:
        return self._model_files.load(round_number).frame

    def delta_frame(self, delta: Delta) -> bytes:
        """The frame of one of the present deltas."""
        return self._delta_frames[delta.base]

    def verify(self, offer: Offer, frame: bytes) -> None:
        """Raise FrameError for an update that must not be averaged; the frame's hash is the one that was offered."""
        state = verify_update(
            frame,
            self._manifest,
            run=self._config.name,
            round_number=offer.round,
            base=self.id,
            base_state=self._state,
        )
        if self._influence is not None:
            self._influence.note(offer.update.sha256, state, self._state)

    def accept(self, device: str, offer: Offer, frame: bytes) -> None:
        """Keep a verified update; it is durable when this returns."""
        self._updates.save(offer.round, device, frame)
        update = AcceptedUpdate(
            round=offer.round,
            device=device,
            samples=offer.samples,
            sha256=offer.update.sha256,
            bytes=len(frame),
            nonzeros=read_header(frame).entries,
            signature=offer.signature,
        )
        self._store.accept_update(update, offer.report)

    def close_round(self, round_number: int, devices: tuple[str, ...], *, elapsed_s: Callable[[], float]) -> None:
        """Make the next version of these devices' updates, evaluate it where it is due, and record the round."""
        # Lossy codecs change the average, so the figures are those of what devices will decode.
        metrics = RoundMetrics(self._manifest, initial=self._initial, start=self._state)
        shares = self._judge(round_number, devices)
        state, shares = self._combine(round_number, shares, metrics)
        self._succeed(self._optimizer.step(self._state, state), round_number=round_number + 1)
        del state
        last = round_number == self._config.rounds
        due = last or round_number % self._config.eval_every == 0
        evaluation = self._evaluate(self._state) if due else None
        levels = self._evaluate_levels() if due else {}
        closed = ClosedRound(
            round=round_number,
            model_id=self.id,
            seconds=elapsed_s(),
            global_sparsity=global_sparsity(self._state, self._manifest.prunable),
            evaluation=evaluation,
            metrics=metrics.finish(self._state) | of_shares(shares) | of_evaluation(evaluation) | levels,
            shares=shares,
        )
        if self._mask_files.wants(round_number):
            self._mask_files.save(round_number, pack_mask(self._state, self._manifest.prunable))
        self._store.close_round(closed)
        self._updates.drop(round_number)

    def _judge(self, round_number: int, devices: tuple[str, ...]) -> dict[str, Share]:
        """What each update counts for."""
        claims, hashes = self._store.samples(round_number), self._store.accepted(round_number)
        claims = {device: claims[device] for device in devices}
        if self._influence is None:
            return {device: Share(claim, claim) for device, claim in claims.items()}
        return self._influence.judge(
            claims,
            {device: hashes[device] for device in devices},
            lambda device: next(self._accepted(round_number, (device,)))[1],
            base=self._state,
        )

    def _combine(
        self, round_number: int, shares: dict[str, Share], metrics: RoundMetrics
    ) -> tuple[State, dict[str, Share]]:
        """The model of the updates, by the run's rule and with the method's mask, and what each counted for in it."""
        devices = tuple(shares)
        updates = metrics.watch(self._accepted(round_number, devices))
        finish = partial(
            combine,
            method=self._manifest.method,
            prunable=self._manifest.prunable,
            round_number=round_number,
            rounds=self._config.rounds,
        )
        if self._influence is None or self._rule is None:
            return finish(updates), shares
        context = RoundContext(self._manifest, self._state, len(devices), self._config.run_path / "updates")
        bounded = self._influence.bound(updates, shares.values(), base=self._state)
        state = finish(bounded, rule=partial(self._rule.combine, context=context))
        return state, self._influence.leave_out(shares, [devices[place] for place in context.left_out])

    def _evaluate_levels(self) -> dict[str, float]:
        """How good the model is as groups with targets of their own begin with it, and may use it."""
        method, prunable = self._manifest.method, self._manifest.prunable
        return {
            f"{LEVEL_PREFIX}{sparsity:g}": self._evaluate(prune_global(self._state, prunable, sparsity)).accuracy
            for sparsity in sorted(set(method.sparsities))
        }

    def deliver(self) -> str:
        """Write the model as ONNX and as a frame into the run directory; returns the SHA-256 of model.onnx."""
        run_dir = self._config.run_path
        last = self._store.rounds()[-1]
        # A run that was stopped may end with a round in which no evaluation was due.
        accuracy = self._evaluate(self._state).accuracy if last.test_accuracy is None else last.test_accuracy
        origin = Origin(run=self._config.name, round=last.round, accuracy=accuracy, sparsity=last.global_sparsity)
        write_atomically(run_dir / FRAME_NAME, self.frame())
        write_models(run_dir, self._state, self._artifacts, origin)
        return sha256_file(run_dir / MODEL_NAME)

    def _accepted(self, round_number: int, devices: tuple[str, ...]) -> Iterator[tuple[int, Tensors]]:
        samples, hashes = self._store.samples(round_number), self._store.accepted(round_number)
        for device in devices:
            frame = self._updates.load(round_number, device)
            if hashlib.sha256(frame).hexdigest() != hashes[device]:
                raise RunError(
                    f"the update of device {device} for round {round_number} in {self._config.run_path} is not the one "
                    f"that was accepted; something has altered it, so the round cannot be closed"
                )
            yield samples[device], decode_lazily(frame, self._manifest.shapes, self._state)

    # ---- versions ----------------------------------------------------------------------------------------------------

    def _succeed(self, mean: State, *, round_number: int) -> None:
        """Make the next version of an average: what devices will decode, and not the average itself."""
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
        )
        # The frame holds it all; what is decoded of it below must not lie in memory beside this.
        del coded
        mean.clear()
        self._model_files.save(version)
        self._present(version)

    def _present(self, version: Version) -> None:
        """Take a version from disk as the present one."""
        self._state = decode_frame(version.frame, self._manifest.shapes).state
        self._round = version.round
        self._residual = version.residual
        self._optimizer.unpack(version.optimizer)
        self.id = version.model_id
        self.blob = blob_of(version.frame)
        self.nonzeros = read_header(version.frame).entries
        frames = {base: frame for base, frame in self._differences(version) if len(frame) < len(version.frame)}
        self._delta_frames = frames
        self.deltas = tuple(Delta(base=base, model=blob_of(frame)) for base, frame in frames.items())

    def _differences(self, version: Version) -> Iterator[tuple[str, bytes]]:
        """The version as a difference to each of those before it, by their ids, the latest first."""
        for before in self._model_files.before(version.round, since=self._first_sent):
            if before.model_id == version.model_id:
                continue
            if before.round == version.round - 1:
                yield before.model_id, version.delta
            else:
                base = decode_frame(before.frame, self._manifest.shapes).state
                frame = self._encode(self._state, round_number=version.round, base_id=before.model_id, base=base)
                yield before.model_id, frame

    def _code(self, mean: State, *, base: State | None, round_number: int) -> Coded:
        shapes = {name: self._manifest.shapes[name] for name in self._manifest.prunable}
        return encode_with_feedback(
            mean,
            unpack_residual(self._residual, shapes),
            run=self._config.name,
            round_number=round_number,
            base_id=self.id,
            base=base,
            codec=self._config.codec,
            prunable=self._manifest.prunable,
        )

    def _encode(self, state: State, *, round_number: int, base_id: str, base: State | None = None) -> bytes:
        """A frame without loss."""
        return frame_of(
            state,
            run=self._config.name,
            round_number=round_number,
            base_id=base_id,
            base=base,
            prunable=self._manifest.prunable,
        )
