"""What a run leaves behind: the store, its records, metrics and tables.

from sparsyedge.coordinator.record import open_run

with open_run("runs/first") as run:
    rounds = run.rounds()          # a list of dicts; pandas.DataFrame(rounds) takes it as it is
"""

from sparsyedge.coordinator.record.plain_tables import Row, RunTables, open_run

__all__ = ["Row", "RunTables", "open_run"]
