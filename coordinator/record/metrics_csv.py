"""The rounds of a run as a table of plain columns, for spreadsheets and notebooks."""

from __future__ import annotations

import csv
import dataclasses
import io

from sparsyedge.coordinator.record.store import Store

__all__ = ["as_csv"]

ERRORS = ("test_rmse", "test_r_squared")


def as_csv(store: Store) -> str:
    """Return one CSV line per closed round: its record, then its figures; missing values are empty."""
    records = [dataclasses.asdict(record) for record in store.rounds()]
    figures = store.metrics()
    names = list(dict.fromkeys(name for row in figures.values() for name in row))
    recorded = [name for name in (records[0] if records else {"round": 0}) if name not in names]
    # A regression's errors are figures; where there are none, these columns would be empty.
    recorded = [name for name in recorded if name not in ERRORS]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow([*recorded, *names])
    for record in records:
        row = figures.get(record["round"], {})
        writer.writerow([*(_cell(record[name]) for name in recorded), *(_cell(row.get(name)) for name in names)])
    return output.getvalue()


def _cell(value: object) -> str:
    return "" if value is None else str(value)
