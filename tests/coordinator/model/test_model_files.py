"""Models on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsyedge.coordinator.model.model_files import KEPT_BASES, Version, Versions
from sparsyedge.edge.errors import RunError


def version_of(round_number: int) -> Version:
    return Version(
        round=round_number, model_id=f"{round_number:064x}", frame=b"f%d" % round_number, delta=b"d", residual=b"r"
    )


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def test_a_version_comes_back_as_it_was(versions: Versions, tmp_path: Path) -> None:
    versions.save(version_of(1))
    assert Versions(tmp_path).load(1) == version_of(1)


def test_the_present_version_and_three_before_it_are_kept(versions: Versions) -> None:
    assert KEPT_BASES == 3
    for number in range(1, 8):
        versions.save(version_of(number))
    assert versions.rounds() == [4, 5, 6, 7]
    assert [version.round for version in versions.before(7)] == [6, 5, 4]


def test_a_version_that_is_made_again_takes_the_place_of_later_ones(versions: Versions) -> None:
    for number in (1, 2, 3):
        versions.save(version_of(number))
    versions.save(version_of(2))
    assert versions.rounds() == [1, 2]


def test_before_the_first_version_there_is_none(versions: Versions) -> None:
    assert versions.rounds() == []
    assert list(versions.before(1)) == []


def test_a_missing_version_is_named(versions: Versions) -> None:
    with pytest.raises(RunError, match=r"the model of round 4 is missing"):
        versions.load(4)


def test_a_damaged_version_is_named(versions: Versions, tmp_path: Path) -> None:
    versions.save(version_of(4))
    (tmp_path / "models" / "4.model").write_bytes(b"rust")
    with pytest.raises(RunError, match=r"the model of round 4 in .*4\.model is damaged"):
        versions.load(4)
