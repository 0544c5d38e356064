"""The updates of the open round: checks each one, keeps it durably, and reads it back when the round closes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.decoded_updates import DecodedUpdates
from sparsyedge.coordinator.model.global_model import GlobalModel
from sparsyedge.coordinator.model.update_checks import verify_update
from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.store import AcceptedUpdate, Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.messages import Offer

__all__ = ["RoundUpdates"]


class RoundUpdates:
    """Takes updates to the present model: call `verify` first, then `accept`."""

    def __init__(self, config: RunConfig, *, model: GlobalModel, store: Store) -> None:
        self._config = config
        self._model = model
        self._store = store
        self._files = UpdateFiles(config.run_path)
        self.decoded = DecodedUpdates(config.run_path / "updates")

    def verify(self, offer: Offer, frame: bytes) -> None:
        """Raise FrameError for an update that must not be averaged; the caller has checked the frame's hash."""
        self._decode(offer.update.sha256, frame, round_number=offer.round)

    def _decode(self, update: str, frame: bytes, *, round_number: int) -> None:
        model, run = self._model, self._config.name
        verified = verify_update(frame, model.base, run=run, round_number=round_number, base_id=model.id)
        self.decoded.add(update, verified, model.base)

    def accept(self, device: str, offer: Offer, frame: bytes) -> None:
        """Keep a verified update; it is durable when this returns."""
        self._files.save(offer.round, device, frame)
        update = AcceptedUpdate(
            round=offer.round,
            device=device,
            samples=offer.samples,
            sha256=offer.update.sha256,
            bytes=len(frame),
            nonzeros=self.decoded[offer.update.sha256].entries,
            signature=offer.signature,
        )
        self._store.accept_update(update, offer.report)

    def decode(self, round_number: int, devices: Sequence[str]) -> dict[str, str]:
        """The hash of each device's update, all of them decoded; raises RunError for an altered file.

        After a restart this decodes what an earlier process accepted.
        """
        hashes = self._store.accepted(round_number)
        for device in devices:
            if hashes[device] not in self.decoded:
                self._decode(
                    hashes[device], self._read(round_number, device, hashes[device]), round_number=round_number
                )
        return {device: hashes[device] for device in devices}

    def _read(self, round_number: int, device: str, sha256: str) -> bytes:
        frame = self._files.load(round_number, device)
        if hashlib.sha256(frame).hexdigest() != sha256:
            raise RunError(
                f"the update of device {device} for round {round_number} in {self._config.run_path} is not the one "
                f"that was accepted; something has altered it, so the round cannot be closed"
            )
        return frame

    def drop(self, round_number: int) -> None:
        """Remove the updates of this round and of all before it, once the round is recorded."""
        self.decoded.clear()
        self._files.drop(round_number)
