"""constraints.txt pins everything that pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PINNED = [
    Requirement(line)
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
WANTED = {
    *PYPROJECT["build-system"]["requires"],
    *PYPROJECT["project"]["dependencies"],
    *(line for extra in EXTRAS.values() for line in extra if not line.startswith("sparsyedge[")),
}


@pytest.mark.parametrize("line", sorted(WANTED))
def test_every_requirement_is_pinned_to_a_version_that_it_allows(line: str) -> None:
    wanted = Requirement(line)
    pins = [pin for pin in PINNED if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
    assert pins, f"{wanted.name} has no line in constraints.txt; run `make lock`"
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "=="
        assert wanted.specifier.contains(version.version), f"{pin} is not {line}; run `make lock`"


def test_no_package_is_pinned_twice_for_the_same_python() -> None:
    names = [(canonicalize_name(pin.name), str(pin.marker)) for pin in PINNED]
    assert len(names) == len(set(names))


def test_pins_name_no_build() -> None:
    # torch is 2.13.0+cpu where only that is offered, and 2.13.0 on PyPI.
    assert not [str(pin) for pin in PINNED if "+" in str(pin.specifier)]
