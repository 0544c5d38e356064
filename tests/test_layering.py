"""What import-linter cannot see: what a process really imports, and what an install really pulls."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from fixtures.repository import REPOSITORY

DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "hardware" / "README.md"]
SOURCE_FOLDERS = ("edge", "coordinator", "export", "benchmarks", "hardware", "tests", "docs")

IMPORT_ALL_OF_EDGE = """
import importlib.util, pkgutil, sys
sys.modules["torch"] = None
import sparsyedge.edge
for module in pkgutil.walk_packages(sparsyedge.edge.__path__, "sparsyedge.edge."):
    if not module.name.endswith(("__main__", "libsparsyedge_ops", "libsparsyedge_codec")):
        importlib.import_module(module.name)
from sparsyedge.edge.training.onnx_runtime import training_api
assert (training_api is not None) == (importlib.util.find_spec("onnxruntime.training") is not None)
"""


def test_a_device_works_on_a_machine_that_has_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL_OF_EDGE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_device_does_not_load_torch_even_where_it_is_installed() -> None:
    script = "import sparsyedge.edge.commands.edge_command, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_base_install_asks_for_neither_torch_nor_two_onnxruntimes() -> None:
    base = [line for line in metadata.requires("sparsyedge") or [] if "extra ==" not in line]
    names = {re.split(r"[^A-Za-z0-9-]", line)[0] for line in base}
    assert names == {
        "cryptography",
        "msgspec",
        "numpy",
        "onnx",
        "onnxruntime",
        "onnxruntime-training",
        "paho-mqtt",
        "zeroconf",
        "zstandard",
    }
    runtimes = [line for line in base if line.startswith("onnxruntime")]
    assert all(";" in line for line in runtimes), runtimes


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    named = set(re.findall(rf"`((?:{'|'.join(SOURCE_FOLDERS)})/[\w/.-]+)`", text))
    named |= set(re.findall(r"\]\((?!https?:)([\w/.-]+)\)", text))
    missing = [name for name in named if not ((REPOSITORY / name).exists() or (document.parent / name).exists())]
    assert not missing
