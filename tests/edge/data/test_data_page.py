"""docs/how-to/data.md: its examples run as they stand, and what they write can be loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.repository import DOCS

from sparsyedge.edge.data import Form, form_of, load
from sparsyedge.edge.data.form import describe

PAGE = (DOCS / "how-to" / "data.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples write."""
    folder = tmp_path_factory.mktemp("examples")
    for block in blocks("python"):
        subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=folder, check=True, timeout=300)
    return folder


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("colour.npz", Form((3, 32, 32), 3, ("apple", "pear", "plum"))),
        ("sensor.npz", Form((3, 128), 4, ("rest", "walk", "run", "shake"), "float32")),
        ("climate.npz", Form((10,), 2, ("temperature", "humidity"), "float32", "regression")),
        ("photos", Form((3, 16, 16), 2, ("apple", "pear"))),
    ],
)
def test_examples_with_a_test_part_can_be_trained_and_evaluated_on(name: str, form: Form, folder: Path) -> None:
    dataset = load(str(folder / name))
    assert form_of(dataset) == form
    assert len(dataset.test) > 0


@pytest.mark.parametrize("name", ["sensor.npz", "climate.npz"])
def test_the_page_shows_what_an_export_says_of_its_examples(name: str, folder: Path) -> None:
    dataset = load(str(folder / name), train_only=True)
    assert "\n".join(f"    {line}" for line in describe(form_of(dataset), dataset.train)) in PAGE


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("device.npz", Form((1, 28, 28), 2, ("plum", "apple"))),
        ("words.npz", Form((1, 16, 16), 2, ("no", "yes"))),
        ("photos/train", Form((3, 16, 16), 2, ("apple", "pear"))),
    ],
)
def test_examples_without_a_test_part_can_be_trained_on(name: str, form: Form, folder: Path) -> None:
    assert form_of(load(str(folder / name), train_only=True)) == form


def test_the_example_of_an_entry_point_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package.py").write_text(next(block for block in blocks("python") if "Dataset(" in block))
    installed = tmp_path / "my_package-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    # An installer makes this of the table in pyproject.toml.
    declared = blocks("toml")[0].replace("project.entry-points.", "").replace('"', "")
    (installed / "entry_points.txt").write_text(declared)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert form_of(load("noise")) == Form((3, 16, 16), 2, ("left", "right"))
