"""Who takes part in a run right now, and who does not: one word for each device."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.record.store_reader import StoreReader
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["Attendance", "attendance", "authority_folder", "revoked_devices"]

Attendance = Literal["online", "training", "left out", "unfit", "revoked", "offline"]


def attendance(*, revoked: bool, unfit: str, online: bool, at_work: bool, left_out: bool) -> Attendance:
    """Return what a device is doing; the first that is true of these."""
    if revoked:
        return "revoked"
    if unfit:
        return "unfit"
    if not online:
        return "offline"
    if at_work:
        return "training"
    return "left out" if left_out else "online"


def authority_folder(store: StoreReader) -> Path | None:
    """Return the folder of the run's authority; None if the fleet has none."""
    folder = msgspec.json.decode(store.config()).get("authority")
    return None if folder is None else Path(folder).expanduser()


def revoked_devices(folder: Path | None) -> tuple[frozenset[str], str]:
    """Return the revoked devices (none without an authority), and a note if the authority cannot be read."""
    if folder is None:
        return frozenset(), ""
    try:
        with Authority.open(folder).ledger() as ledger:
            return frozenset(ledger.denied()), ""
    except SparsyedgeError as error:
        return frozenset(), f"who is revoked is unknown: {error}"
