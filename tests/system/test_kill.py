"""Coordinator, its workers, broker and devices are killed at any moment, and the run ends in the same model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.broker import mosquitto_binary
from system.killing import ROLES, Kills, Machine, Outcome, Role, run_changing_workers, run_killing, run_undisturbed

from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.model.artifacts import Artifacts

ROUNDS = 6
FEW = 3
MANY = int(os.environ.get("SPARSYEDGE_KILLS", "50"))


@pytest.fixture(scope="module")
def artifacts(digits_artifacts: Artifacts) -> Path:
    return digits_artifacts.directory


@pytest.fixture(scope="module")
def undisturbed(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = run_undisturbed(Machine(tmp_path_factory.mktemp("calm"), artifacts, mosquitto_binary(), rounds=ROUNDS))
    assert len(outcome.models) == ROUNDS
    return outcome


def machines(role: Role, artifacts: Path, folder: Path) -> Iterator[Machine]:
    workers = 2 if role == "worker" else 1
    for index in itertools.count():
        yield Machine(folder / str(index), artifacts, mosquitto_binary(), rounds=ROUNDS, ingest_workers=workers)


def kill_until(role: Role, count: int, artifacts: Path, folder: Path, undisturbed: Outcome) -> Kills:
    """Whole runs with kills, until there were enough of them; each run must come to the undisturbed one's outcome."""
    if role == "worker" and available_cores() < 2:
        pytest.skip("two worker processes are refused on one core")
    kills = Kills()
    for seed, machine in enumerate(machines(role, artifacts, folder)):
        outcome = run_killing(machine, role, seed=seed, kills=kills)
        assert outcome == undisturbed, machine.logs()
        print(f"{role}: {kills} after {seed + 1} runs", flush=True)
        if kills.of(role) >= count:
            return kills
    raise AssertionError("there are always more machines")


@pytest.mark.mosquitto
@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", ROLES)
def test_a_run_whose_processes_are_killed_ends_in_the_same_model(
    role: Role, artifacts: Path, tmp_path: Path, undisturbed: Outcome
) -> None:
    assert kill_until(role, FEW, artifacts, tmp_path, undisturbed).of(role) >= FEW


@pytest.mark.mosquitto
@pytest.mark.timeout(900)
@pytest.mark.skipif(available_cores() < 2, reason="two worker processes are refused on one core")
def test_a_killed_run_goes_on_with_any_number_of_workers_and_ends_in_the_same_model(
    artifacts: Path, tmp_path: Path, undisturbed: Outcome
) -> None:
    machine = Machine(tmp_path / "machine", artifacts, mosquitto_binary(), rounds=ROUNDS, ingest_workers=2)
    assert run_changing_workers(machine, (1, 2, 1)) == undisturbed, machine.logs()


@pytest.mark.slow
@pytest.mark.mosquitto
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", ROLES)
def test_fifty_kills_of_each_role_do_not_change_the_model(
    role: Role, artifacts: Path, tmp_path: Path, undisturbed: Outcome
) -> None:
    assert kill_until(role, MANY, artifacts, tmp_path, undisturbed).of(role) >= MANY
