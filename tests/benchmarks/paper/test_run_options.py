"""Options of `bench paper` that hold for every row: which seeds vary what, and the codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparsyedge.benchmarks.paper import command
from sparsyedge.benchmarks.paper.experiments import EXPERIMENTS
from sparsyedge.benchmarks.paper.results import run_config
from sparsyedge.benchmarks.paper.settings import OTHER_SEED, SCALES, SEEDS, Setting
from sparsyedge.edge.errors import ConfigError


def plain_setting() -> Setting:
    (row,) = [row for row in EXPERIMENTS["communication"].rows(False) if row.label == "sparsyfed 0.95"]
    return next(row.settings(SCALES["small"], SEEDS, full=False))


def test_an_option_that_is_not_given_changes_no_name_and_no_run(tmp_path: Path) -> None:
    plain = plain_setting()
    assert plain.key == "cifar10-sparsyfed-0.95-a0.1-r60-s5378-a6133140"
    same = msgspec.structs.replace(plain, codec="bf16", seeds_vary=None)
    assert same.key == plain.key
    assert run_config(same, tmp_path, data_dir=None) == run_config(plain, tmp_path, data_dir=None)


def test_a_codec_and_what_seeds_vary_are_part_of_a_settings_identity() -> None:
    plain = plain_setting()
    others = [
        msgspec.structs.replace(plain, codec="lossless"),
        msgspec.structs.replace(plain, codec="int8"),
        msgspec.structs.replace(plain, seeds_vary="sampling"),
    ]
    assert len({plain.key, *(each.key for each in others)}) == 4


def test_seeds_that_vary_the_sampling_share_weights_shares_and_batches(tmp_path: Path) -> None:
    settings = [msgspec.structs.replace(plain_setting(), seed=seed, seeds_vary="sampling") for seed in SEEDS]
    configs = [run_config(setting, tmp_path, data_dir=None) for setting in settings]
    assert [config.cohort_seed for config in configs] == list(SEEDS)
    assert {config.seed for config in configs} == {OTHER_SEED}
    assert len({config.artifacts for config in configs}) == 1
    for config in configs:
        assert config.simulation is not None
        assert config.simulation.export is not None
        assert (config.simulation.export.seed, config.simulation.partition_seed) == (OTHER_SEED, 1337)


def test_seeds_vary_everything_unless_told_otherwise(tmp_path: Path) -> None:
    config = run_config(plain_setting(), tmp_path, data_dir=None)
    assert config.cohort_seed == config.seed == 5378


def test_the_command_hands_both_on_to_every_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Setting] = []

    def result(setting: Setting, *arguments: object, **options: object) -> dict[str, Any]:
        asked.append(setting)
        return {"setting": msgspec.to_builtins(setting), "figures": {}, "rounds": []}

    monkeypatch.setattr(command, "run_setting", result)
    arguments = ["communication", "--results", str(tmp_path), "--json"]
    assert command.main([*arguments, "--codec", "lossless", "--seeds-vary", "sampling"]) == 0
    assert {(setting.codec, setting.seeds_vary) for setting in asked} == {("lossless", "sampling")}
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(each["codec"] == "lossless" for row in rows for each in row["settings"])


def test_sampling_that_cannot_vary_is_refused_before_any_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "run_setting", lambda *arguments, **options: pytest.fail("a run was started"))
    # All 10 devices with sound take part in every round.
    with pytest.raises(ConfigError, match=r"--seeds-vary has value sampling: with all 10 devices .*--only"):
        command.main(["accuracy", "--seeds-vary", "sampling", "--results", str(tmp_path)])
