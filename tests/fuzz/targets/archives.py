"""Packed images: .xz files whose content or index lies."""

from __future__ import annotations

import lzma
import random
import tempfile
from pathlib import Path

from fuzz.target import require_sentence

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash.stock_image import unpack

# A file per input would wear out a disk.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def seeds() -> list[bytes]:
    content = random.Random(1).randbytes(700) + bytes(5000)
    return [lzma.compress(content), lzma.compress(content, preset=0), content, lzma.compress(b"")]


def check(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        packed = Path(folder) / "os.img.xz"
        packed.write_bytes(data)
        try:
            unpack(packed, Path(folder) / "os.img")
        except FlashError as error:
            require_sentence(error)
