"""Models on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsyedge.coordinator.model.model_files import KEPT_BASES, ModelFiles, Version
from sparsyedge.edge.errors import RunError


def version_of(round_number: int) -> Version:
    return Version(
        round=round_number, model_id=f"{round_number:064x}", frame=b"f%d" % round_number, delta=b"d", residual=b"r"
    )


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path)


def test_a_version_comes_back_as_it_was(files: ModelFiles, tmp_path: Path) -> None:
    files.save(version_of(1))
    assert ModelFiles(tmp_path).load(1) == version_of(1)


def test_the_present_version_and_three_before_it_are_kept(files: ModelFiles) -> None:
    assert KEPT_BASES == 3
    for number in range(1, 8):
        files.save(version_of(number))
    assert files.rounds() == [4, 5, 6, 7]
    assert [version.round for version in files.before(7)] == [6, 5, 4]


def test_a_version_that_is_made_again_takes_the_place_of_later_ones(files: ModelFiles) -> None:
    for number in (1, 2, 3):
        files.save(version_of(number))
    files.save(version_of(2))
    assert files.rounds() == [1, 2]


def test_before_the_first_version_there_is_none(files: ModelFiles) -> None:
    assert files.rounds() == []
    assert list(files.before(1)) == []


def test_a_missing_version_is_named(files: ModelFiles) -> None:
    with pytest.raises(RunError, match=r"the model of round 4 is missing"):
        files.load(4)


def test_a_damaged_version_is_named(files: ModelFiles, tmp_path: Path) -> None:
    files.save(version_of(4))
    (tmp_path / "models" / "4.model").write_bytes(b"rust")
    with pytest.raises(RunError, match=r"the model of round 4 in .*4\.model is damaged"):
        files.load(4)
