"""The model of a run: its present version on disk, and how the next one comes from accepted updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from sparsyedge.coordinator.aggregate import average
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.deliver import write_model
from sparsyedge.coordinator.evaluate import global_sparsity
from sparsyedge.coordinator.models import Models
from sparsyedge.coordinator.records import Evaluation
from sparsyedge.coordinator.store import AcceptedUpdate, ClosedRound, Store
from sparsyedge.coordinator.verify import verify_update
from sparsyedge.edge.artifacts import Artifacts
from sparsyedge.edge.errors import ArtifactError
from sparsyedge.edge.messages import Blob, Delta, Offer
from sparsyedge.edge.storage import sha256_file, write_atomically
from sparsyedge.edge.tensors import State, model_id
from sparsyedge.edge.transfer import blob_of
from sparsyedge.edge.wire import decode_frame, encode_frame

__all__ = ["MODEL_NAME", "Evaluate", "GlobalModel"]

MODEL_NAME = "model.onnx"
FRAME_NAME = "model.frame"

Evaluate = Callable[[State], Evaluation]


class GlobalModel:
    """The present version: its state, which updates are differences to, and its frame on disk (`id`, `blob`)."""

    id: str
    blob: Blob
    delta: Delta | None = None
    """How devices that hold the version before get this one; None where that is the checkpoint's, or there is none."""
    delta_frame: bytes = b""

    def __init__(
        self, config: RunConfig, artifacts: Artifacts, initial: State, *, store: Store, evaluate: Evaluate
    ) -> None:
        self._config = config
        self._artifacts = artifacts
        self._manifest = artifacts.manifest
        self._store = store
        self._evaluate = evaluate
        self._models = Models(config.run_path)
        self._keep(initial, round_number=1)
        if self.id != self._manifest.initial_model:
            raise ArtifactError(
                f"the checkpoint in {artifacts.directory} holds model {self.id[:12]}, the manifest says "
                f"{self._manifest.initial_model[:12]}; run `sparsyedge export` again"
            )

    @property
    def is_initial(self) -> bool:
        """Whether devices have it already, as the checkpoint among the artifacts."""
        return self.id == self._manifest.initial_model

    @property
    def path(self) -> Path:
        """Where the frame of the present version is."""
        return self._models.model_path(self.id)

    def verify(self, frame: bytes, round_number: int) -> None:
        """Raise FrameError for an update that must not be averaged in this round."""
        verify_update(
            frame,
            self._manifest,
            run=self._config.name,
            round_number=round_number,
            base=self.id,
            base_state=self._state,
        )

    def accept(self, device: str, offer: Offer, frame: bytes) -> None:
        """Keep a verified update; it is durable when this returns."""
        self._models.save_update(offer.round, device, frame)
        update = AcceptedUpdate(
            round=offer.round,
            device=device,
            samples=offer.samples,
            sha256=offer.update.sha256,
            bytes=len(frame),
        )
        self._store.accept_update(update, offer.report)

    def close_round(self, round_number: int, devices: tuple[str, ...], *, elapsed_s: Callable[[], float]) -> None:
        """Make the next version of these devices' updates, evaluate it where it is due, and record the round."""
        before = self.id
        state = average(self._updates(round_number, devices))
        self._keep(state, round_number=round_number + 1)
        last = round_number == self._config.rounds
        due = last or round_number % self._config.eval_every == 0
        evaluation = self._evaluate(state) if due else None
        closed = ClosedRound(
            round=round_number,
            model_id=self.id,
            seconds=elapsed_s(),
            global_sparsity=global_sparsity(state, self._manifest.prunable),
            evaluation=evaluation,
        )
        self._store.close_round(closed)
        self._models.drop_updates(round_number)
        # Devices may still be told of the version before, until the next round opens.
        self._models.drop_models(keep={before, self.id})

    def deliver(self) -> str:
        """Write model.onnx and model.frame into the run directory; returns the SHA-256 of the former."""
        run_dir = self._config.run_path
        frame = self.path.read_bytes()
        state = decode_frame(frame, self._manifest.shapes).state
        write_atomically(run_dir / FRAME_NAME, frame)
        write_model(run_dir / MODEL_NAME, state, self._artifacts)
        return sha256_file(run_dir / MODEL_NAME)

    def _updates(self, round_number: int, devices: tuple[str, ...]) -> Iterator[tuple[int, State]]:
        samples = self._store.samples(round_number)
        for device in devices:
            frame = self._models.load_update(round_number, device)
            yield samples[device], decode_frame(frame, self._manifest.shapes, self._state).state

    def _keep(self, state: State, *, round_number: int) -> None:
        self._make_delta(state, round_number=round_number)
        self._state = state
        self.id = model_id(state)
        frame = self._encode(state, round_number=round_number, base_id=self.id)
        self.blob = blob_of(frame)
        self._models.save_model(self.id, frame)

    def _make_delta(self, state: State, *, round_number: int) -> None:
        """Encode the next version as a difference to the present one, which most devices hold."""
        self.delta = None
        if round_number > 1 and not self.is_initial:
            self.delta_frame = self._encode(state, round_number=round_number, base_id=self.id, base=self._state)
            self.delta = Delta(base=self.id, model=blob_of(self.delta_frame))

    def _encode(self, state: State, *, round_number: int, base_id: str, base: State | None = None) -> bytes:
        encoded = encode_frame(
            state,
            run=self._config.name,
            round_number=round_number,
            base_id=base_id,
            base=base,
            prunable=self._manifest.prunable,
        )
        return encoded.frame
