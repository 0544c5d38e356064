"""The fast tier stays fast: what starts a broker, exports, trains or compiles is marked, or fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.tiers import heavy_program

TESTS = Path(__file__).parent
SAMPLE = """
import subprocess
import pytest
from sparsyedge.edge.training.sparse_session import SparseSession

SparseSession.train_step = lambda: None  # stands in for a step that takes a model

def test_light():
    subprocess.run(["true"], check=True)

def test_sneaky():
    with pytest.raises(OSError):
        subprocess.run(["/nowhere/mosquitto"])

def test_trains():
    SparseSession.train_step()

@pytest.mark.heavy
def test_marked():
    SparseSession.train_step()

@pytest.mark.mosquitto
def test_for_mosquitto():
    pass

@pytest.fixture
def broker():
    pass

@pytest.fixture
def fleet(broker):
    pass

def test_by_fixture(fleet):
    pass
"""


def run_sample(folder: Path, *options: str) -> tuple[set[str], str]:
    """The tests that passed, and all that pytest said."""
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n heavy\n slow\n mosquitto\n")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "fixtures.tiers", *options]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    said = done.stdout + done.stderr
    passed = set(re.findall(r"::(\w+) PASSED", said))
    return passed - set(re.findall(r"::(\w+) ERROR", said)), said


def test_a_light_test_that_does_something_heavy_fails_and_learns_how_to_mark_itself(tmp_path: Path) -> None:
    passed, said = run_sample(tmp_path)
    assert passed == {"test_light", "test_marked", "test_for_mosquitto", "test_by_fixture"}
    assert "this test started a broker: mark it with pytest.mark.heavy" in said
    assert "this test trained: mark it with pytest.mark.heavy" in said


def test_the_fast_tier_leaves_out_what_is_heavy_by_marker_or_by_fixture(tmp_path: Path) -> None:
    passed, said = run_sample(tmp_path, "-m", "not heavy")
    assert passed == {"test_light"}
    assert "3 deselected" in said


@pytest.mark.parametrize(
    ("command", "counts_as"),
    [
        (["/usr/sbin/mosquitto", "-c", "mosquitto.conf"], "started a broker"),
        ([sys.executable, "-m", "sparsyedge.benchmarks.demo.broker", "1883"], "started a broker"),
        ([Path("/venv/bin/cmake"), "--build", "."], "compiled"),
        ("g++", "compiled"),
        (["g++", "--version"], None),
        (["cat", "/etc/mosquitto.conf"], None),
        ([b"true"], None),
    ],
)
def test_programs_count_by_their_name(command: object, counts_as: str | None) -> None:
    assert heavy_program(command) == counts_as
