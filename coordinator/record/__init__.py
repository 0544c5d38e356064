"""The record of a run: its store, metrics and tables.

from sparsyedge.coordinator.record import open_run

with open_run("runs/first") as run:
    rounds = run.rounds()          # a list of dicts, ready for pandas.DataFrame(rounds)
"""

from sparsyedge.coordinator.record.plain_tables import Row, RunTables, open_run

__all__ = ["Row", "RunTables", "open_run"]
