"""A device's model on disk: whole at any moment, the old one kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsyedge.edge.device.model_shelf import ModelShelf
from sparsyedge.edge.faults import CRASH_VARIABLE, EXIT_CODE, SWAP_POINTS

WRITER = """
import sys
from pathlib import Path
from sparsyedge.edge.device.model_shelf import ModelShelf
from sparsyedge.edge.storage import write_atomically

def fill(folder):
    for name in ("model.onnx", "model.json"):
        write_atomically(folder / name, sys.argv[2].encode())

ModelShelf(Path(sys.argv[1])).put(sys.argv[2], fill)
"""


def put(shelf: ModelShelf, name: str) -> None:
    def fill(folder: Path) -> None:
        for file in ("model.onnx", "model.json"):
            (folder / file).write_text(name)

    shelf.put(name, fill)


def seen(shelf: ModelShelf) -> set[str]:
    """What the two files in use say; more than one word is a mix."""
    return {(shelf.current / file).read_text() for file in ("model.onnx", "model.json")}


def versions(shelf: ModelShelf) -> set[str]:
    return {path.name for path in shelf.folder.iterdir() if not path.is_symlink()}


def test_the_version_before_is_kept_and_older_ones_go(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path / "model")
    assert shelf.version is None
    for name in ("one", "two", "three"):
        put(shelf, name)
        assert seen(shelf) == {name}
    assert versions(shelf) == {"two", "three"}
    assert (shelf.folder / "previous" / "model.onnx").read_text() == "two"


def test_a_version_in_use_is_not_written_again(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path / "model")
    put(shelf, "one")

    def fill(folder: Path) -> None:
        raise AssertionError("written again")

    shelf.put("one", fill)
    assert seen(shelf) == {"one"}


def test_a_version_that_cannot_be_written_leaves_the_one_in_use(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path / "model")
    put(shelf, "one")

    def fill(folder: Path) -> None:
        (folder / "model.onnx").write_text("two")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        shelf.put("two", fill)
    assert seen(shelf) == {"one"}
    assert versions(shelf) == {"one"}


@pytest.mark.parametrize(
    "point",
    ["half-written:1", "before-rename:1", "after-rename:1", "half-written:2", "after-rename:2", *SWAP_POINTS],
)
def test_a_writer_that_is_killed_leaves_one_whole_version_and_the_next_one_cleans_up(
    point: str, tmp_path: Path
) -> None:
    shelf = ModelShelf(tmp_path / "model")
    put(shelf, "one")
    put(shelf, "two")
    killed = subprocess.run(
        [sys.executable, "-c", WRITER, str(shelf.folder), "three"],
        env={**os.environ, CRASH_VARIABLE: point},
        check=False,
    )
    assert killed.returncode == EXIT_CODE
    assert seen(shelf) == ({"three"} if point == "after-swap" else {"two"})
    put(shelf, "three")
    assert seen(shelf) == {"three"}
    assert versions(shelf) == {"two", "three"}
    assert not list(shelf.folder.glob(".*"))


def test_what_was_announced_is_known_after_a_restart(tmp_path: Path) -> None:
    shelf = ModelShelf(tmp_path / "model")
    assert shelf.told is None
    put(shelf, "one")
    assert shelf.told is None
    shelf.tell("one")
    put(shelf, "two")
    assert ModelShelf(shelf.folder).told == "one"
