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


MACHINES = [
    {"python_version": python, "platform_machine": machine, "sys_platform": "linux"}
    for python in ("3.11", "3.12", "3.13", "3.14")
    for machine in ("x86_64", "aarch64")
]


def holds(requirement: Requirement, machine: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(machine)


@pytest.mark.parametrize("line", sorted(WANTED))
def test_every_requirement_is_pinned_to_a_version_that_it_allows(line: str) -> None:
    wanted = Requirement(line)
    pins = [pin for pin in PINNED if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
    for machine in MACHINES:
        if holds(wanted, machine):
            assert any(holds(pin, machine) for pin in pins), f"{wanted.name} has no pin for {machine}; run `make lock`"
        for pin in pins:
            (version,) = pin.specifier
            assert version.operator == "=="
            if holds(wanted, machine) and holds(pin, machine):
                assert wanted.specifier.contains(version.version), f"{pin} is not {line}; run `make lock`"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(machine.values()))
def test_no_package_is_pinned_twice_for_the_same_machine(machine: dict[str, str]) -> None:
    names = [canonicalize_name(pin.name) for pin in PINNED if holds(pin, machine)]
    assert len(names) == len(set(names))


def test_pins_name_no_build() -> None:
    # torch is 2.13.0+cpu where only that is offered, and 2.13.0 on PyPI.
    assert not [str(pin) for pin in PINNED if "+" in str(pin.specifier)]
