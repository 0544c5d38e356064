"""Names in a FAT folder: an 11-byte short name that every system reads, preceded by the long name in UTF-16."""

from __future__ import annotations

import re

__all__ = ["LongName", "long_name_entries", "short_name", "short_name_checksum"]

_PIECES = ((1, 11), (14, 26), (28, 32))  # where a long-name entry stores its 13 characters
_CHARACTERS = 13
_LAST = 0x40
_LONG_NAME = 0x0F


def short_name(raw: bytes) -> str:
    """The 8.3 name of an entry; one bit each marks the stem and the extension as lower case."""
    stem, extension = (raw[start:end].decode("cp437").rstrip() for start, end in ((0, 8), (8, 11)))
    stem, extension = (
        stem.lower() if raw[12] & 0x08 else stem,
        extension.lower() if raw[12] & 0x10 else extension,
    )
    return f"{stem}.{extension}" if extension else stem


class LongName:
    """Collects a long name from its entries, last piece first; drops pieces without a short entry."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._first = self._awaited = self._checksum = 0

    def add(self, raw: bytes, place: int) -> None:
        """Add the long-name entry at `place` in its folder."""
        order = raw[0]
        if order & _LAST:
            self._pieces, self._first = [], place
            self._awaited, self._checksum = order & ~_LAST, raw[13]
        elif order != self._awaited or raw[13] != self._checksum:
            self._pieces, self._awaited = [], 0
            return
        self._pieces.insert(0, _piece(raw))
        self._awaited -= 1

    def take(self, raw: bytes, place: int) -> tuple[str, int]:
        """The full name for the short entry at `place`, and where its entries begin; then starts over."""
        whole = self._pieces and self._awaited == 0 and self._checksum == short_name_checksum(raw[:11])
        name = "".join(self._pieces) if whole else ""
        taken = (name, self._first) if name else (short_name(raw), place)
        self.forget()
        return taken

    def forget(self) -> None:
        """Drop the pieces collected so far; they belong to no entry."""
        self._pieces, self._awaited = [], 0


def _piece(raw: bytes) -> str:
    """The characters in one entry of a long name."""
    text = b"".join(raw[start:end] for start, end in _PIECES).decode("utf-16-le", errors="replace")
    return text.split("\0")[0].rstrip("\uffff")


def short_name_checksum(short: bytes) -> int:
    """The checksum that ties a long name to its short entry."""
    total = 0
    for byte in short:
        total = ((total & 1) << 7 | total >> 1) + byte & 0xFF
    return total


def long_name_entries(name: str, taken: set[bytes]) -> tuple[bytes, bytes]:
    """An unused short name, and the long name's entries in on-disk order."""
    short = _free_short_name(name, taken)
    checksum = short_name_checksum(short)
    units = name.encode("utf-16-le") + b"\0\0"
    count = -(-(len(units) - 2) // (2 * _CHARACTERS))
    units = units[: count * 2 * _CHARACTERS].ljust(count * 2 * _CHARACTERS, b"\xff")
    entries = []
    for number in range(count, 0, -1):
        piece = units[(number - 1) * 26 : number * 26]
        order = number | (_LAST if number == count else 0)
        head, middle, tail = piece[:10], piece[10:22], piece[22:26]
        entries.append(bytes([order]) + head + bytes([_LONG_NAME, 0, checksum]) + middle + b"\0\0" + tail)
    return short, b"".join(entries)


def _free_short_name(name: str, taken: set[bytes]) -> bytes:
    stem, _, extension = name.upper().rpartition(".") if "." in name.strip(".") else (name.upper(), "", "")
    stem, extension = (re.sub(r"[^A-Z0-9_-]", "", part) for part in (stem, extension))
    for number in range(1, 1_000_000):
        tail = f"~{number}"
        short = (stem[: 8 - len(tail)] + tail).ljust(8).encode() + extension[:3].ljust(3).encode()
        if short not in taken:
            return short
    raise ValueError(f"no short name is free for {name}")
