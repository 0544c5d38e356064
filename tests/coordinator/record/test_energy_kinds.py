"""A sum of joules that were not all measured alike is called what its weakest part is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import permutations
from typing import get_args

import pytest

from sparsyedge.coordinator.record.energy_kinds import LEAST_TRUSTED, least_trusted
from sparsyedge.edge.phase_costs import Kind

PAIRS = [
    ("measured-board", "measured-rails", "measured-rails"),
    ("measured-board", "calibrated", "calibrated"),
    ("battery", "calibrated", "calibrated"),
    ("calibrated", "modelled", "modelled"),
    ("measured-board", "none", "measured-board"),
]


@pytest.mark.parametrize(("first", "second", "weaker"), PAIRS)
def test_the_weaker_kind_names_the_sum(first: str, second: str, weaker: str) -> None:
    assert least_trusted(first, second) == least_trusted(second, first) == weaker


def test_the_database_ranks_every_kind_as_the_program_does() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        for first, second in permutations(get_args(Kind), 2):
            rows = f"(SELECT '{first}' AS kind UNION ALL SELECT '{second}')"
            found = database.execute(f"SELECT {LEAST_TRUSTED} FROM {rows}").fetchone()[0]
            assert found == least_trusted(first, second)
