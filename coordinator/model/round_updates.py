"""The updates of the open round: checks each one, keeps it, and reads it back when the round closes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from sparsyedge.coordinator.aggregation.influence import Influence
from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.update_checks import verify_update
from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.store import AcceptedUpdate, Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.model.artifacts import Manifest
from sparsyedge.edge.protocol.messages import Offer
from sparsyedge.edge.tensors import Tensors
from sparsyedge.edge.wire.frame import decode_lazily, read_header

__all__ = ["RoundUpdates"]


class RoundUpdates:
    """Takes updates to the present model: call `verify` first, then `accept`."""

    def __init__(
        self, config: RunConfig, manifest: Manifest, *, model: GlobalModel, store: Store, influence: Influence | None
    ) -> None:
        """`influence` measures each verified update; None for a run without bounds."""
        self._config = config
        self._manifest = manifest
        self._model = model
        self._store = store
        self._influence = influence
        self._files = UpdateFiles(config.run_path)
        store.before_commit = self._files.sync

    def verify(self, offer: Offer, frame: bytes) -> None:
        """Raise FrameError for an update that must not be averaged; the caller has checked the frame's hash."""
        state = verify_update(
            frame,
            self._manifest,
            run=self._config.name,
            round_number=offer.round,
            base=self._model.id,
            base_state=self._model.state,
        )
        if self._influence is not None:
            self._influence.note(offer.update.sha256, state, self._model.state)

    def accept(self, device: str, offer: Offer, frame: bytes) -> None:
        """Keep a verified update; it is durable with the store's next commit."""
        if self._files.round != offer.round:
            self._files.begin(offer.round, end=self._store.end_of_frames(offer.round))
        position = self._files.save(frame)
        update = AcceptedUpdate(
            round=offer.round,
            device=device,
            samples=offer.samples,
            sha256=offer.update.sha256,
            bytes=len(frame),
            position=position,
            nonzeros=read_header(frame).entries,
            signature=offer.signature,
        )
        self._store.accept_update(update, offer.report)

    def read(self, round_number: int, devices: Sequence[str]) -> Iterator[tuple[int, Tensors]]:
        """Yield the samples and tensors of each device's update, in this order; raises RunError for an altered file."""
        kept = self._store.kept_updates(round_number, devices)
        for device in devices:
            update = kept[device]
            try:
                frame = self._files.load(round_number, position=update.position, size=update.bytes)
            except FileNotFoundError:
                frame = b""
            if hashlib.sha256(frame).hexdigest() != update.sha256:
                raise RunError(
                    f"the update of device {device} for round {round_number} in {self._config.run_path} is not the one "
                    f"that was accepted; something has altered it, so the round cannot be closed"
                )
            yield update.samples, decode_lazily(frame, self._manifest.shapes, self._model.state)

    def close(self) -> None:
        """Close the file of the open round's updates; what is in it is durable."""
        self._files.sync()
        self._files.close()

    def drop(self, round_number: int) -> None:
        """Remove the updates of this round and of all before it, once the round is recorded."""
        self._files.drop(round_number)
