"""The attacks benchmark: members that attack through real frames, and what is made of the results."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sparsyedge.benchmarks.attacks import command
from sparsyedge.benchmarks.attacks.result import Result, Settings
from sparsyedge.benchmarks.attacks.tables import print_table
from sparsyedge.benchmarks.simulate import simulate
from sparsyedge.benchmarks.simulate.hostile_members import ATTACKS, CLAIM, ForgingSession, flip
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.data import Samples
from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.tensors import State

SMALL = [
    "--rounds",
    "2",
    "--devices",
    "4",
    "--hostile",
    "1",
    "--width",
    "4",
    "--seeds",
    "1",
    "--workers",
    "1",
    "--json",
]
SETTINGS = Settings(devices=4, hostile=1, rounds=2, width=4, learning_rate=0.5)


class Trained:
    """A session after some training."""

    kind = "dense"

    def __init__(self, state: State) -> None:
        self._state = state

    def state(self) -> State:
        return self._state


def test_a_turned_change_is_as_far_from_the_model_on_the_other_side() -> None:
    start = {"w": np.array([1.0, 2.0], dtype=np.float32), "running_var": np.array([1.0], dtype=np.float32)}
    trained = {"w": np.array([1.5, 1.0], dtype=np.float32), "running_var": np.array([1.5], dtype=np.float32)}
    session = ForgingSession(Trained(trained), start, flip(3.0), seed=0)  # type: ignore[arg-type]
    assert session.state()["w"].tolist() == [-0.5, 5.0]
    # Otherwise the update would be refused, and nothing attacked.
    assert session.state()["running_var"].tolist() == [0.0]


def test_labels_are_turned_round_in_its_data_alone() -> None:
    samples = Samples(np.zeros((3, 1), dtype=np.float32), np.array([0, 4, 9]))
    assert ATTACKS["labels"].poison(samples).y.tolist() == [9, 5, 0]
    assert ATTACKS["sign-1"].poison(samples) is samples


@pytest.mark.heavy
def test_what_a_hostile_member_sends_is_accepted_and_bounded_by_the_coordinator(tmp_path: Path) -> None:
    config = command._run_config(SETTINGS, "mean", "claims", 1, tmp_path)
    simulate(config, workers=1, hostile={"device-003": "claims"})
    with closing(Store.open(config.run_path)) as store:
        assert store.refusals() == ()
        assert {device for device, samples in store.samples(1).items() if samples == CLAIM} == {"device-003"}
        noted = [note for note in store.adjustments() if note.device == "device-003"]
        assert [note.cut for note in noted] == [True, True]
        assert noted[0].clipped < 1


@pytest.mark.heavy
def test_small_runs_end_in_a_document_and_go_on_from_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [*SMALL, "--rules", "unguarded,aligned", "--attacks", "none", "--out", str(tmp_path)]
    assert command.main(small) == 0
    first = json.loads(capsys.readouterr().out)
    assert list(first["rules"]) == ["unguarded", "aligned"]
    assert len(first["rules"]["aligned"]["none"]["runs"]) == 1

    def unwanted(*arguments: object, **keywords: object) -> None:
        raise AssertionError("what is there is not run again")

    monkeypatch.setattr(command, "simulate", unwanted)
    assert command.main(small) == 0
    assert json.loads(capsys.readouterr().out) == first
    with pytest.raises(ConfigError, match="other settings"):
        command.main([*small, "--rounds", "3"])


def test_the_table_fits_eighty_columns_and_shows_what_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        Result(
            rule=rule,
            attack=attack,
            seed=1,
            settings=SETTINGS,
            test_accuracy=accuracy,
            global_sparsity=0.95,
            refused=0,
            model_id="",
            seconds=1.0,
        )
        for rule, accuracies in {"unguarded": (0.93, 0.5), "trimmed": (0.92, 0.86)}.items()
        for attack, accuracy in zip(("none", "sign-9"), accuracies, strict=True)
    ]
    print_table(Console(width=80), results)
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert [line.split() for line in shown.splitlines() if "trimmed" in line] == [
        ["trimmed", "92.0", "86.0", "1.0", "7.0"]
    ]


def test_one_device_at_least_is_honest() -> None:
    with pytest.raises(ConfigError, match="one must stay honest"):
        command.main(["--devices", "2", "--hostile", "2"])
