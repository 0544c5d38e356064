"""The Python API: exactly these names are public, each with a docstring, and scripts need no others."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess

import pytest
from fixtures.repository import REPOSITORY

PUBLIC = {
    "sparsyedge.benchmarks.simulate": {
        "Backend",
        "Engine",
        "ExportConfig",
        "LinkKind",
        "SimulatedRunConfig",
        "SimulationConfig",
        "load_simulated_run",
        "simulate",
    },
    "sparsyedge.coordinator.record": {"Row", "RunTables", "open_run"},
    "sparsyedge.edge.inference": {"Predictor", "Score", "evaluate"},
    "sparsyedge.edge.wire": {"Frame", "read_frame"},
    "sparsyedge.export": {"ModelSpec", "export_model", "make_method", "make_training"},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_module_exports_exactly_its_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) == PUBLIC[name]
    assert module.__doc__


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in sorted(names)]
)
def test_everything_public_says_what_it_is(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__doc__, f"{module}.{name} has no docstring"


def test_no_module_imports_the_command_of_another() -> None:
    """Entries of commands are for tables of commands; what others need of a command belongs beside it."""
    listing = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(r"^\s*(?:from sparsyedge\.\S*\bcommand\b|from sparsyedge\.\S*_command) import", re.M)
    importers = {
        path
        for path in listing
        if not path.startswith(("tests/", "docs/")) and pattern.search((REPOSITORY / path).read_text())
    }
    # The coordinator's command is one table over three modules.
    assert importers <= {"coordinator/commands/coordinator_command.py"}
