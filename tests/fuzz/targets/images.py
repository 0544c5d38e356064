"""Images for cards: partition table, boot sector, table of clusters, folders and files, altered sector by sector.

An input says which image, how much of its end is cut, and what stands in the sectors that the image does not leave
empty, one after the other.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.stock_images import BOOKWORM, SECTOR, TRIXIE, format_fat32
from fuzz.sparse_file import SparseFile
from fuzz.target import require_sentence
from fuzz.targets.device_files import HONEST

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME
from sparsyedge.edge.security.wheel_list import LIST_HEADER, LIST_NAME
from sparsyedge.hardware.flash.card import write_all
from sparsyedge.hardware.flash.card_record import CardRecord, setting_files
from sparsyedge.hardware.flash.card_settings import CardSettings, Wifi
from sparsyedge.hardware.flash.fat import FatVolume
from sparsyedge.hardware.flash.first_boot import card_files
from sparsyedge.hardware.flash.firstrun import firstrun_files
from sparsyedge.hardware.flash.partitions import boot_partition
from sparsyedge.hardware.flash.read_back import inspect_volume
from sparsyedge.hardware.flash.stock_image import identify

OURS = "sparsyedge/wheels/sparsyedge-0.1.0-py3-none-any.whl"
WHEEL = b"wheel" * 300
LIST = f"{LIST_HEADER}\n{hashlib.sha256(WHEEL).hexdigest()}  {Path(OURS).name}\n".encode()
SETTINGS = CardSettings(hostname="pi-01", wifi=(Wifi(ssid="home", psk="0" * 64),), wifi_country="DE")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def seeds() -> list[bytes]:
    return [bytes([number, 0]) + b"".join(file.sectors.values()) for number, file in enumerate(_images())]


def check(data: bytes) -> None:
    images = _images()
    whole = images[data[0] % len(images) if data else 0]
    content = data[2:]
    sectors = {
        number: content[place * SECTOR : (place + 1) * SECTOR].ljust(SECTOR, b"\0")
        for place, number in enumerate(whole.sectors)
    }
    size = whole.size * (256 - data[1]) // 256 if len(data) > 1 else whole.size
    file = SparseFile(size, sectors)
    for step in (_read, _write):
        try:
            step(file)
        except FlashError as error:
            require_sentence(error)


def _read(file: SparseFile) -> None:
    """As `flash verify` does."""
    "\n".join(inspect_volume(_volume(file), Path("card.img")).lines(now_s=0))


def _write(file: SparseFile) -> None:
    """As `flash pi` does."""
    volume = _volume(file)
    system = identify(volume, "os.img")
    files = {**card_files(0), OURS: WHEEL}
    if system.first_boot == "firstrun":
        files |= firstrun_files(SETTINGS, volume.read("cmdline.txt") or b"")
    write_all(volume, files)
    volume.flush()
    again = _volume(file)
    assert all(again.read(name) == content for name, content in files.items()), "what was written does not read back"


def _volume(file: SparseFile) -> FatVolume:
    binary = cast("BinaryIO", file)
    return FatVolume(binary, boot_partition(binary, "os.img").start)


@cache
def _images() -> list[SparseFile]:
    """Both stock systems, and a card that was made of the first."""
    with tempfile.TemporaryDirectory() as folder:
        path = format_fat32(Path(folder) / "os.img")
        size = path.stat().st_size
        with path.open("rb") as file:
            content = file.read()
    places = [place for place in range(0, len(content), SECTOR) if content[place : place + SECTOR].strip(b"\0")]
    empty = SparseFile(size, {place // SECTOR: content[place : place + SECTOR] for place in places})
    honest = msgspec.structs.replace(HONEST, signing_key=KEY.public_key().public_bytes_raw().hex())
    device = {DEVICE_FILE_NAME: msgspec.json.encode(honest)}
    record = CardRecord(device=honest.device, fleet=honest.fleet, release="trixie", settings=SETTINGS)
    card = {**TRIXIE, **card_files(0), **setting_files(record, b"", flashed_at=0)[0], **device, OURS: WHEEL}
    listed = str(Path(OURS).with_name(LIST_NAME.format(python="3.13")))
    card |= {listed: LIST, f"{listed}.sig": KEY.sign(LIST)}
    return [_with_files(empty, files) for files in (TRIXIE, BOOKWORM, card)]


def _with_files(empty: SparseFile, files: dict[str, bytes]) -> SparseFile:
    file = SparseFile(empty.size, empty.sectors)
    volume = _volume(file)
    for name, content in files.items():
        volume.write(name, content)
    volume.flush()
    # The second table of clusters is written and never read.
    second = volume._layout.tables[1] // SECTOR
    file.sectors.pop(second, None)
    file.sectors = dict(sorted(file.sectors.items()))
    return file
