"""A wheelhouse as a release: what is read, and what is refused before anything is signed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.releases import add_release

from sparsyedge.coordinator.rollout.bundle import keep_files, read_wheelhouse
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.storage import sha256_file
from sparsyedge.edge.upgrade.judge import Machine


def test_a_wheelhouse_becomes_a_set_of_files_for_each_python(tmp_path: Path) -> None:
    version, sets = read_wheelhouse(add_release(tmp_path / "wheels", "9.1", machine=Machine("3.11", "aarch64")))
    assert version == "9.1"
    assert [(wheels.python, wheels.machine) for wheels in sets] == [("3.11", "aarch64")]
    assert {file.name.split("-")[0] for file in sets[0].files} == {"pip", "requirements", "sparsyedge"}
    assert sets[0].installed_bytes > max(file.bytes for file in sets[0].files)


def test_a_folder_without_lists_is_no_wheelhouse(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SecurityError, match="is no wheelhouse"):
            read_wheelhouse(folder)


def test_an_altered_or_missing_wheel_is_refused(tmp_path: Path) -> None:
    wheelhouse = add_release(tmp_path / "wheels", "9.1")
    wheel = next(wheelhouse.glob("sparsyedge-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"more")
    with pytest.raises(SecurityError, match="it was altered"):
        read_wheelhouse(wheelhouse)
    wheel.unlink()
    with pytest.raises(SecurityError, match="which is not in"):
        read_wheelhouse(wheelhouse)


def test_two_versions_in_one_wheelhouse_are_refused(tmp_path: Path) -> None:
    wheelhouse = add_release(tmp_path / "wheels", "9.1", machine=Machine("3.11", "aarch64"))
    other = add_release(tmp_path / "other", "9.2", machine=Machine("3.13", "aarch64"))
    for path in other.iterdir():
        path.replace(wheelhouse / path.name)
    with pytest.raises(SecurityError, match=r"9\.1, 9\.2; needed is one"):
        read_wheelhouse(wheelhouse)


def test_kept_files_survive_the_wheelhouse_and_replace_those_of_the_last_rollout(tmp_path: Path) -> None:
    wheelhouse = add_release(tmp_path / "wheels", "9.1")
    _, sets = read_wheelhouse(wheelhouse)
    place = tmp_path / "kept"
    place.mkdir()
    (place / "of-the-last-one").touch()
    keep_files(wheelhouse, sets, place)
    assert {path.name for path in place.iterdir()} == {file.sha256 for file in sets[0].files}
    assert all(sha256_file(path) == path.name for path in place.iterdir())
