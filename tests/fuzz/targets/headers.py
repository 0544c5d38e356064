"""Headers of frames: msgpack in front of honest sections, with lengths and a digest that agree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
import zstandard
from fixtures.forgeries import FORGERIES, SHAPES, Forgery, base
from fuzz.targets.frames import check_frame

from sparsyedge.edge.wire.envelope import MAGIC, PREFIX

SECTIONS = Forgery()
TAIL = SECTIONS.masks + SECTIONS.weight_values + SECTIONS.other_values
MAX_FORGED_BYTES = 4096


def seeds() -> list[bytes]:
    headers = {_header(None), *map(_header, FORGERIES)} - {b""}
    return [b"\0" + header for header in sorted(headers)]


def check(data: bytes) -> None:
    plain = packed = data[1:]
    if data[:1] == b"\1":
        packed = zstandard.ZstdCompressor().compress(plain)
    body = PREFIX.pack(MAGIC, len(packed), len(plain)) + packed + TAIL
    check_frame(body + hashlib.sha256(body).digest(), SHAPES, base())


def _header(forge: Callable[[Forgery], None] | None) -> bytes:
    """The header of a forged frame; empty where the forgery is in the frame's other parts."""
    forgery = Forgery()
    if forge is not None:
        forge(forgery)
    frame = forgery.seal()
    _, packed, unpacked = PREFIX.unpack_from(frame)
    header = frame[PREFIX.size : PREFIX.size + packed]
    return header if packed == unpacked and len(header) < MAX_FORGED_BYTES else b""


assert msgspec.msgpack.decode(_header(None))["run"] == "demo"
