"""What `make test-device` skips, and what it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def outcome(folder: Path, statement: str) -> str:
    """The last line of a pytest run, as `make test-device` makes it, over one file that begins with the statement."""
    (folder / "test_it.py").write_text(f"{statement}\ndef test_it():\n    pass\n")
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "fixtures.device_install",
            "-p",
            "no:cacheprovider",
            "test_it.py",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    return result.stdout


def test_file_that_needs_a_package_no_device_has_is_skipped_by_name(tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    assert "SKIPPED [1] test_it.py:1: needs torch" in outcome(tmp_path, missing)


def test_file_that_lacks_anything_else_is_an_error(tmp_path: Path) -> None:
    assert "1 error" in outcome(tmp_path, "import sparsyedge.no_such_module")
    assert "1 error" in outcome(tmp_path, "raise ModuleNotFoundError(\"No module named 'msgspec'\")")


def test_file_that_needs_nothing_more_is_run(tmp_path: Path) -> None:
    assert "1 passed" in outcome(tmp_path, "import sparsyedge.edge")
