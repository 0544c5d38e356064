"""Uploads in progress: granted ones only, one per device at a time."""

from __future__ import annotations

from collections.abc import Mapping

from sparsyedge.coordinator.rounds.stages import Granted
from sparsyedge.edge.protocol.chunks import Assembly
from sparsyedge.edge.protocol.messages import Offer

__all__ = ["Upload", "Uploads"]


class Upload:
    """An update whose chunks are arriving, with its offer."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.assembly = Assembly(offer.update)

    @property
    def update(self) -> str:
        """The hash of the update."""
        return self.offer.update.sha256


class Uploads:
    """Uploads in progress, by device. They use no more memory than their offers declare."""

    def __init__(self) -> None:
        self._by_device: dict[str, Upload] = {}

    def begin(self, device: str, offer: Offer) -> Upload:
        """Continue the upload of the offered update with the chunks we have, or start a new one."""
        upload = self._by_device.get(device)
        if upload is None or upload.offer.update != offer.update:
            upload = self._by_device[device] = Upload(offer)
        upload.offer = offer
        return upload

    def get(self, device: str, update: str) -> Upload | None:
        """The upload of this update, or None."""
        upload = self._by_device.get(device)
        return upload if upload is not None and upload.update == update else None

    def unfinished(self) -> dict[str, str]:
        """The refusal reason for each incomplete upload, by device."""
        return {
            device: f"the upload of update {upload.update[:12]} was not finished when the round closed"
            for device, upload in self._by_device.items()
            if not upload.assembly.complete
        }

    def keep_only(self, granted: Mapping[str, Granted], *, concerned: str | None = None) -> None:
        """Forget uploads that are no longer granted; the one of the device `concerned` is the likeliest."""
        if concerned is not None and concerned not in granted:
            self._by_device.pop(concerned, None)
        # Every granted upload is here, so there is one too many only if there are more than granted ones.
        if len(self._by_device) > len(granted):
            self._by_device = {device: upload for device, upload in self._by_device.items() if device in granted}
