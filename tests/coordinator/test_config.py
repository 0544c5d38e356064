"""RUN.toml."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import msgspec
import pytest
from fixtures.repository import DOCS, REPOSITORY

from sparsyedge.benchmarks.simulate.config import load_simulated_run
from sparsyedge.coordinator.aggregation_config import AggregationConfig
from sparsyedge.coordinator.config import RunConfig, load_run_config
from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.resume import check_same_run
from sparsyedge.edge.config import BrokerConfig
from sparsyedge.edge.cores import available_cores
from sparsyedge.edge.errors import ConfigError, RunError

CORES = available_cores()

MINIMAL = """
name = "r1"
artifacts = "artifacts"
run_dir = "~/runs/r1"
dataset = "digits"
rounds = 8
cohort_size = 4
"""


def read(folder: Path, more: str = "", *, base: str = MINIMAL) -> RunConfig:
    path = folder / "RUN.toml"
    path.write_text(base + more)
    return load_run_config(path)


def test_minimal__valid(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.updates_needed, config.devices_needed) == (4, 4)
    assert (config.batch_size, config.epochs, config.deadline_s, config.fleet) == (16, 1, None, "default")
    assert config.run_path == Path.home() / "runs/r1"
    assert config.data_path is None


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = read(tmp_path, 'data_dir = "data"\nauthority = "fleet"', base=MINIMAL.replace('"digits"', '"mine.npz"'))
    assert (config.artifacts_path, config.data_path) == (tmp_path / "artifacts", tmp_path / "data")
    assert (config.authority, config.dataset) == (str(tmp_path / "fleet"), str(tmp_path / "mine.npz"))


def test_everything__valid(tmp_path: Path) -> None:
    more = """
    data_dir = "data"
    fleet = "lab"
    epochs = 2
    batch_size = 32
    min_updates = 2
    min_devices = 3
    deadline_s = 30
    seed = 5378
    threads = 2
    eval_every = 5
    learning_rate = {start = 0.2, end = 0.02}
    broker = {host = "10.0.0.1", port = 8883}
    """
    config = read(tmp_path, more)
    assert (config.updates_needed, config.devices_needed, config.learning_rate.end) == (2, 3, 0.02)
    assert config.broker == BrokerConfig(host="10.0.0.1", port=8883)


def test_a_place_for_blobs_is_a_folder_beside_the_file_or_a_bucket__valid(tmp_path: Path) -> None:
    for put, found in (("web", str(tmp_path / "web")), ("s3://bucket/prefix", "s3://bucket/prefix")):
        config = read(tmp_path, f'blobs = {{url = "https://store.example/fleet", put = "{put}"}}')
        assert config.blobs is not None
        assert (config.blobs.put, config.blobs.fallback) == (found, True)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("min_updates = 5", r"`min_updates` has value 5: .*`cohort_size` = 4 .*allowed are 1 to 4"),
        ("min_updates = 3\nmin_devices = 2", r"`min_devices` has value 2: .*`min_updates` = 3"),
        ("learning_rate = {start = 0.1, end = 0.2}", r"`learning_rate.end` has value 0.2: .*at most .* = 0.1"),
        ("ingest_workers = 0", r"`ingest_workers` has value 0: .*at least 1 and at most 256"),
        ("ingest_workers = 10_000", r"`ingest_workers` has value 10000: .*at least 1 and at most 256"),
        (f"ingest_workers = {CORES + 1}", rf"`ingest_workers` has value {CORES + 1}: .*allowed are 1 to {CORES}"),
        ("version = 2", r"`version` has value 2: .*allowed: at least 1 and at most 1"),
        ("method = {sparsity = 1.0}", r"`method.sparsity` has value 1.0: .*at least 0 and less than 1"),
        ("method = {sparsities = [0.9, 1.0]}", r"`method.sparsities\[1\]` has value 1.0: .*less than 1"),
        ("method = {beta = 0}", r"`method.beta` has value 0: .*at least 1 and at most 10"),
        (
            "method = {beta = 0.99}",
            r"`method.beta` has value 0.99: .*\(below 1, zero weights have an infinite gradient\)",
        ),
        ("method = {weight_decay = inf}", r"`method.weight_decay` has value inf: .*at least 0 and at most 1000"),
        ('method = {name = "sparsifed"}', r"`method.name` has value 'sparsifed': .*did you mean sparsyfed\?"),
        ('method = {name = "topk", beta = 1.25}', r"`method.beta` has value 1.25: method topk has no such option"),
        ('training = {optimizer = "adam"}', r"`training.optimizer` has value 'adam': .*allowed: adamw, momentum, sgd"),
        ("training = {nesterov = true}", r"`training.nesterov` has value True: optimizer sgd has no such option"),
        ("method = {sparsities = [0.9, 0.8], shares = [1]}", r"`method.sparsities` has 2 .*`method.shares` has 1;"),
        (
            "learning_rate = {start = inf, end = 0.1}",
            r"`learning_rate.start` has value inf: .*more than 0 and at most 1000",
        ),
        ("learning_rate = {end = nan}", r"`learning_rate.end` has value nan: .*more than 0 and at most 1000"),
        ("server_optimizer = {tau = inf}", r"`server_optimizer.tau` has value inf: not a finite number; .*more than 0"),
        (
            "simulation = {devices = 3, alpha = inf}",
            r"`simulation.alpha` has value inf: not a finite number; .*more than 0",
        ),
        ("simulation = {devices = 3, alpha = 0}", r"`simulation.alpha` has value 0: .*more than 0"),
        ("epochs = 0", r"`epochs` has value 0: expected `int` >= 1"),
        ("deadline_s = 0", r"`deadline_s` has value 0"),
        ("seed = -1", r"`seed` has value -1"),
        ("cohort = 3", r"unknown key `cohort`; did you mean `cohort_size`\?"),
        ("broker = {prot = 1}", r"unknown key `broker.prot`; did you mean `port`\?"),
        ('fleet = "a/b"', r"`fleet` has value 'a/b'"),
        ('blobs = {url = "ftp://x/y", put = "."}', r"`blobs.url`: .*scheme 'ftp'; allowed: http, https"),
        ('blobs = {url = "https://u:p@x/y", put = "."}', r"`blobs.url`: .* names a user; .* remove that"),
        ('blobs = {url = "https://x/y", put = "gs://z"}', r"`blobs.put` has value 'gs://z'; allowed: a folder, or s3:"),
        ('blobs = {url = "https://x/y", put = "s3:///"}', r"`blobs.put` has value 's3:///'; allowed: a folder, or s3:"),
        ('blobs = {url = "https://x/y"}', r"key `blobs.put` is missing"),
    ],
)
def test_values__invalid(tmp_path: Path, more: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        read(tmp_path, more)
    assert "RUN.toml" in str(caught.value)


def test_a_table_of_another_command_is_checked_and_left_alone(tmp_path: Path) -> None:
    with_table = read(tmp_path, "[simulation]\ndevices = 3\nnorm_guard = false\n")
    assert type(with_table) is RunConfig
    assert with_table == read(tmp_path)
    assert with_table.bounded_aggregation == AggregationConfig()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("[simulation]\ndevices = 3\nalhpa = 1.0", r"unknown key `simulation.alhpa`; did you mean `alpha`\?"),
        ("[simulation]\nalpha = 1.0", r"key `simulation.devices` is missing; add it"),
        ("[simulations]\ndevices = 3", r"unknown key `simulations`; did you mean `simulation`\?"),
    ],
)
@pytest.mark.parametrize("load", [load_run_config, load_simulated_run])
def test_every_command_says_the_same_of_a_wrong_table(
    tmp_path: Path, load: Callable[[Path], RunConfig], more: str, sentence: str
) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(MINIMAL + more)
    with pytest.raises(ConfigError, match=sentence):
        load(path)


def test_the_coordinator_does_not_know_of_simulations() -> None:
    knowing = [
        path for path in (REPOSITORY / "coordinator").rglob("*.py") if re.search("(?i)simulat", path.read_text())
    ]
    assert knowing == []


def test_name__invalid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key `name` is missing"):
        read(tmp_path, base=MINIMAL.replace('name = "r1"', ""))


def test_file__invalid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_run_config(tmp_path / "absent.toml")


def test_rounds_have_five_settings_and_the_documentation_names_their_defaults() -> None:
    text = (DOCS / "explanation" / "rounds.md").read_text(encoding="utf-8")
    table = text.partition("## Settings")[2].partition("A learned deadline")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", table, flags=re.MULTILINE)
    assert len(rows) == 5
    config = RunConfig(name="r", artifacts="a", run_dir="d", dataset="x", rounds=1, cohort_size=7)
    for name, default in rows:
        value = getattr(config, name)
        assert value == {"required": 7, "0": 0, "`cohort_size`": None, "learned": None}[default], name
    assert (config.updates_needed, config.devices_needed) == (7, 7)


@pytest.mark.parametrize(
    ("dataset", "refused"),
    [("/new/mine.npz", False), ("/old/yours.npz", True), ("digits", True), ("/old/mine.npz", False)],
)
def test_a_run_goes_on_when_its_folder_was_moved(tmp_path: Path, dataset: str, refused: bool) -> None:
    begun = RunConfig(
        name="r",
        artifacts="/old/a",
        run_dir=str(tmp_path),
        dataset="/old/mine.npz",
        rounds=1,
        cohort_size=1,
        authority="/old/f",
    )
    moved = msgspec.structs.replace(begun, artifacts="/new/a", authority="/new/f", dataset=dataset)
    config = msgspec.json.encode(begun).decode()
    expected = pytest.raises(RunError, match="begun with `dataset`") if refused else nullcontext()
    store = Store.create(tmp_path, name="r", fleet="f", rounds=1, dense_bytes=1, config=config)
    with closing(store), expected:
        check_same_run(moved, store)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [("null", nullcontext()), ('{"devices":3}', pytest.raises(RunError, match=r"begun with `simulation`, by another"))],
)
def test_a_run_goes_on_with_a_key_of_another_command_only_if_it_is_empty(
    tmp_path: Path, stored: str, expected: AbstractContextManager[object]
) -> None:
    begun = RunConfig(name="r", artifacts="a", run_dir=str(tmp_path), dataset="x", rounds=1, cohort_size=1)
    config = f'{{"simulation":{stored},{msgspec.json.encode(begun).decode()[1:]}'
    store = Store.create(tmp_path, name="r", fleet="f", rounds=1, dense_bytes=1, config=config)
    with closing(store), expected:
        assert check_same_run(begun, store) == begun
