"""What a card knows of itself: whose it is and with which settings it was made, so that they can be changed later."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from sparsyedge.edge.config import Identifier, Section
from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.toml_text import toml_text
from sparsyedge.hardware.flash import cloud_init, firstrun
from sparsyedge.hardware.flash.card_settings import CardSettings
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.first_boot import CARD_FOLDER

__all__ = ["CHANGES_NAME", "RECORD_NAME", "CardRecord", "read_record", "setting_files"]

RECORD_NAME = f"{CARD_FOLDER}/card.json"
CHANGES_NAME = f"{CARD_FOLDER}/device-changes.toml"
"""Keys of device.toml, which the board's next first boot changes there."""


class CardRecord(Section, frozen=True, kw_only=True):
    """card.json on the boot partition. Like cloud-init's files it has the keys of Wi-Fi networks in it."""

    version: Literal[1] = 1
    device: Identifier
    fleet: Identifier
    release: Literal["trixie", "bookworm"]
    settings: CardSettings


def read_record(volume: FatVolume, path: Path) -> CardRecord:
    """The record of a card; raises FlashError if it is not one of ours."""
    content = volume.read(RECORD_NAME)
    if content is None:
        made = volume.read(f"{CARD_FOLDER}/install.sh") is not None
        what = "was made by a version before 0.4" if made else "is not a card that `flash pi` made"
        raise FlashError(f"{path} {what}: it has no {RECORD_NAME}; make a card from a stock image instead")
    try:
        return msgspec.json.decode(content, type=CardRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The message names a key and never a value.
        raise FlashError(f"{RECORD_NAME} on {path} cannot be read: {error}; make the card again") from error


def setting_files(record: CardRecord, command_line: bytes, *, flashed_at: int) -> tuple[dict[str, bytes], str]:
    """The files that apply a card's settings, and the name of the one that must be in place last."""
    settings = record.settings
    if record.release == "trixie":
        files = cloud_init.cloud_init_files(record.device, settings, flashed_at=flashed_at)
        trigger = cloud_init.TRIGGER
    else:
        files, trigger = firstrun.firstrun_files(settings, command_line), firstrun.TRIGGER
    return {
        RECORD_NAME: msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n",
        CHANGES_NAME: toml_text(settings.device).encode(),
        **files,
    }, trigger
