"""What is known of a suite's workloads without running them: published seconds, modelled ones, and peaks of memory."""

from __future__ import annotations

from importlib import resources

import msgspec

__all__ = ["Known", "KnownRow", "known_rows", "measured_needs", "read_known"]

FILE_NAME = "boards_known.json"


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of memory by workload, from one machine."""

    machine: str
    peak_rss_mb: dict[str, float]


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per batch of 16 by board."""

    workload: str
    seconds: dict[str, float]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    needs: Needs
    published: list[Seconds]
    published_source: str
    modelled: list[Seconds]
    modelled_source: str


class KnownRow(msgspec.Struct, frozen=True, kw_only=True):
    """One board's seconds that nobody measured here."""

    workload: str
    board: str
    kind: str
    """`published` or `modelled`."""
    seconds: float


def read_known() -> Known:
    """The file that comes with the package."""
    return msgspec.json.decode(resources.files(__package__).joinpath(FILE_NAME).read_bytes(), type=Known)


def known_rows() -> list[KnownRow]:
    """All of its seconds, published ones first."""
    known = read_known()
    return [
        KnownRow(workload=each.workload, board=board, kind=kind, seconds=seconds)
        for kind, table in (("published", known.published), ("modelled", known.modelled))
        for each in table
        for board, seconds in each.seconds.items()
    ]


def measured_needs() -> dict[str, float]:
    """Peaks of memory in MB by workload."""
    return read_known().needs.peak_rss_mb
