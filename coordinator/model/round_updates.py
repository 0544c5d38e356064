"""The updates of the open round: checks each one, keeps it, and has all of them decoded when the round closes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sparsyedge.coordinator.config import RunConfig
from sparsyedge.coordinator.model.decoded_updates import DecodedUpdates
from sparsyedge.coordinator.model.update_files import UpdateFiles
from sparsyedge.coordinator.record.records import KeptUpdate
from sparsyedge.coordinator.record.store import AcceptedUpdate, Store
from sparsyedge.edge.errors import RunError
from sparsyedge.edge.protocol.messages import Offer

__all__ = ["RoundUpdates"]


class RoundUpdates:
    """Takes updates to the present model: call `verify` first, then `accept`."""

    def __init__(self, config: RunConfig, *, decoded: DecodedUpdates, store: Store) -> None:
        self._config = config
        self._store = store
        self._files = UpdateFiles(config.run_path)
        store.before_commit = self._files.sync
        self.decoded = decoded

    def verify(self, offer: Offer, frame: bytes, *, device: str = "") -> bool:
        """Check an update, its hash included; raises FrameError if it must not be averaged.

        False if a worker process checks it: `decoded.answers` will say.
        """
        update = offer.update.sha256
        if self.decoded.ask(update, frame, round_number=offer.round, device=device):
            return False
        self.decoded.decode(update, frame, round_number=offer.round)
        return True

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
            nonzeros=self.decoded[offer.update.sha256].entries,
            signature=offer.signature,
        )
        self._store.accept_update(update, offer.report)

    def decode(self, round_number: int, devices: Sequence[str]) -> dict[str, str]:
        """The hash of each device's update, all of them decoded; raises RunError for an altered file.

        After a restart this decodes what an earlier process accepted.
        """
        kept = self._store.kept_updates(round_number, devices)
        missing = [device for device in devices if kept[device].sha256 not in self.decoded]
        frames = ((kept[device].sha256, self._read(round_number, device, kept[device])) for device in missing)
        self.decoded.decode_all(frames, round_number=round_number)
        return {device: kept[device].sha256 for device in devices}

    def _read(self, round_number: int, device: str, kept: KeptUpdate) -> bytes:
        try:
            frame = self._files.load(round_number, position=kept.position, size=kept.bytes)
        except FileNotFoundError:
            frame = b""
        if hashlib.sha256(frame).hexdigest() != kept.sha256:
            raise RunError(
                f"the update of device {device} for round {round_number} in {self._config.run_path} is not the one "
                f"that was accepted; something has altered it, so the round cannot be closed"
            )
        return frame

    def close(self) -> None:
        """Close the file of the open round's updates; what is in it is durable."""
        self._files.sync()
        self._files.close()

    def drop(self, round_number: int) -> None:
        """Remove the updates of this round and of all before it, once the round is recorded."""
        self._files.drop(round_number)
