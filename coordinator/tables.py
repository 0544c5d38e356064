"""Tables for a terminal of 80 columns."""

from __future__ import annotations

from rich import box
from rich.table import Table

from sparsyedge.coordinator.records import RoundRecord

__all__ = ["compact_table", "ratio", "round_table"]

FLOAT32_BYTES = 4


def round_table(rounds: tuple[RoundRecord, ...]) -> Table:
    """One row per closed round."""
    title = "rounds (MB of all devices; bytes and non-zeros as times less than dense)"
    sides = ("down MB", "bytes", "nz", "up MB", "bytes", "nz")
    table = compact_table(title, "round", "acc", "sparse", *sides, "updates", "seconds")
    # Eleven columns: the box's own space between them has to do.
    table.padding = (0, 0, 0, 0)
    for record in rounds:
        dense = record.dense_bytes * record.updates
        table.add_row(
            str(record.round),
            "-" if record.test_accuracy is None else f"{record.test_accuracy:.1%}",
            f"{record.global_sparsity:.4f}",
            f"{record.bytes_down / 1e6:.2f}",
            ratio(dense, record.bytes_down),
            ratio(dense, FLOAT32_BYTES * record.nonzeros_down),
            f"{record.bytes_up / 1e6:.2f}",
            ratio(dense, record.bytes_up),
            ratio(dense, FLOAT32_BYTES * record.nonzeros_up),
            f"{record.updates}" + (f" (+{record.refused})" if record.refused else ""),
            f"{record.seconds:.1f}",
        )
    return table


def compact_table(title: str, *headings: str) -> Table:
    """A table that fits a terminal of 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "device" else "right", no_wrap=True)
    return table


def ratio(dense_bytes: int, sent_bytes: int) -> str:
    """How many times less than dense float32 was moved, as text."""
    return "-" if sent_bytes == 0 else f"{dense_bytes / sent_bytes:.1f}x"
