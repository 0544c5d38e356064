import os
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from sparsyedge.edge.config import BrokerConfig, DeviceConfig, Port, Section, broker_list, load_config
from sparsyedge.edge.errors import ConfigError

SMALLEST = 'id = "pi-01"\n[data]\ndataset = "digits"\n'


def load(tmp_path: Path, text: str) -> DeviceConfig:
    path = tmp_path / "device.toml"
    path.write_text(text)
    return load_config(path, DeviceConfig)


def refuse(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(tmp_path / "device.toml") in sentence
    return sentence


def test_defaults_serve_a_device_beside_its_broker(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    assert (config.id, config.data.dataset, config.fleet) == ("pi-01", "digits", "default")
    assert config.broker == BrokerConfig(host="127.0.0.1", port=1883)


def test_a_device_trains_with_the_cores_that_it_has(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, mine[:1])
        assert load(tmp_path, SMALLEST).threads == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert load(tmp_path, SMALLEST).threads == len(mine)
    assert load(tmp_path, "threads = 3\n" + SMALLEST).threads == 3


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(home))
    text = 'id = "pi-01"\nwork_dir = "~/work"\nidentity = "../who"\n[data]\ndataset = "mine.npz"\ndata_dir = "data"\n'
    (tmp_path / "board").mkdir()
    config = load(tmp_path / "board", text)
    assert (config.work_dir, config.identity) == (str(home / "work"), str(tmp_path / "who"))
    assert config.data.data_dir == str(tmp_path / "board" / "data")
    assert config.data.dataset == str(tmp_path / "board" / "mine.npz")
    # The same through a relative path to the file.
    monkeypatch.chdir(tmp_path)
    assert load(Path("board"), text) == config


def test_a_data_set_beside_the_file_goes_before_one_in_the_data_folder(tmp_path: Path) -> None:
    text = 'id = "pi-01"\n[data]\ndataset = "mine.npz"\ndata_dir = "data"\n'
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.npz").touch()
    assert load(tmp_path, text).data.dataset == str(tmp_path / "data" / "mine.npz")
    (tmp_path / "mine.npz").touch()
    assert load(tmp_path, text).data.dataset == str(tmp_path / "mine.npz")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("cifar10", "cifar10"),  # a folder of that name is where the data set may be, not another one
        ("plants", "{}/plants"),
        ("of-a-package", "of-a-package"),
        ("plants/oaks", "{}/plants/oaks"),
        ("/data/mine.npz", "/data/mine.npz"),
    ],
)
def test_the_name_of_a_data_set_stays_a_name(tmp_path: Path, written: str, read: str) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "plants").mkdir()
    config = load(tmp_path, f'id = "pi-01"\n[data]\ndataset = "{written}"\n')
    assert config.data.dataset == read.format(tmp_path)


def test_the_home_of_nobody_is_refused(tmp_path: Path) -> None:
    sentence = refuse(tmp_path, 'work_dir = "~nobody-at-all/x"\n' + SMALLEST)
    assert "key `work_dir` has value '~nobody-at-all/x'" in sentence


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        id = "pi-01"
        fleet = "attic"
        work_dir = "/var/lib/sparsyedge"
        threads = 4
        meter = "none"
        [broker]
        host = "broker.local"
        port = 8883
        [data]
        dataset = "cifar10"
        data_dir = "/data"
        [data.partition]
        devices = 4
        index = 3
        alpha = 0.1
        seed = 7
        """,
    )
    assert config.data.partition is not None
    assert (config.data.partition.index, config.fleet) == (3, "attic")
    assert config.broker == BrokerConfig(host="broker.local", port=8883)


def test_a_device_may_know_several_brokers(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST + '[[broker]]\nhost = "b1"\n[[broker]]\nhost = "b2"\nport = 8883\n')
    assert broker_list(config.broker) == (BrokerConfig(host="b1"), BrokerConfig(host="b2", port=8883))
    assert broker_list(load(tmp_path, SMALLEST).broker) == (BrokerConfig(),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[[broker]]\nhost = "b1"\n[[broker]]\nport = 0\n', "key `broker[1].port` has value 0"),
        ('[[broker]]\nhots = "b1"\n', "unknown key `broker[0].hots`; did you mean `host`?"),
        ("[broker]\nport = 99999\n", "allowed: at least 1 and at most 65535"),
    ],
)
def test_a_mistake_in_a_list_of_brokers_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in refuse(tmp_path, SMALLEST + text)


def test_a_list_of_brokers_has_at_least_one(tmp_path: Path) -> None:
    assert "key `broker` has value []" in refuse(tmp_path, "broker = []\n" + SMALLEST)


def test_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    assert "unknown key `thread`; did you mean `threads`?" in refuse(tmp_path, "thread = 2\n" + SMALLEST)


def test_unknown_key_in_a_table_is_refused_with_its_path(tmp_path: Path) -> None:
    sentence = refuse(tmp_path, SMALLEST + '[broker]\nhots = "x"\n')
    assert "unknown key `broker.hots`; did you mean `host`?" in sentence


def test_unknown_key_in_an_optional_table_is_refused_with_its_path(tmp_path: Path) -> None:
    sentence = refuse(tmp_path, SMALLEST + "[data.partition]\ndevices = 2\nindex = 0\nbeta = 1\n")
    assert "unknown key `data.partition.beta`" in sentence


def test_unknown_key_like_no_other_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    sentence = refuse(tmp_path, SMALLEST + "[broker]\nqqqqqq = 1\n")
    assert "allowed here: host, port" in sentence


def test_missing_key_is_named(tmp_path: Path) -> None:
    assert "key `id` is missing" in refuse(tmp_path, '[data]\ndataset = "digits"\n')
    assert "key `data.dataset` is missing" in refuse(tmp_path, 'id = "pi-01"\n[data]\n')


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("threads = 0", "key `threads` has value 0: expected `int` >= 1"),
        ("threads = 1000", "key `threads` has value 1000: expected `int` <= 256"),
        ('threads = "two"', "key `threads` has value 'two': expected `int`, got `str`"),
        ('fleet = "a/b"', "key `fleet` has value 'a/b': expected `str` matching"),
        ('fleet = "#"', "key `fleet` has value '#': expected `str` matching"),
        ('fleet = ""', "key `fleet` has value '': expected `str` matching"),
        ('fleet = "home\\n"', "key `fleet` has value 'home\\n': expected `str` matching"),
        ("broker = 3", "key `broker` has value 3: expected `object | array`, got `int`"),
        ("idle_s = inf", "key `idle_s` has value inf: expected `float` <= 600.0; allowed: at least 0 and at most 600"),
        ("idle_s = nan", "key `idle_s` has value nan: expected `float` >= 0.0; allowed: at least 0 and at most 600"),
    ],
)
def test_value_out_of_bounds_is_refused_with_what_is_allowed(tmp_path: Path, line: str, expected: str) -> None:
    assert expected in refuse(tmp_path, f"{line}\n{SMALLEST}")


def test_infinity_is_refused_where_nothing_else_bounds_a_number(tmp_path: Path) -> None:
    partition = "[data.partition]\ndevices = 2\nindex = 0\nalpha = inf\n"
    sentence = "key `data.partition.alpha` has value inf: not a finite number; allowed: more than 0"
    assert sentence in refuse(tmp_path, SMALLEST + partition)
    sentence = "key `limits.min_free_disk_mb` has value inf: not a finite number; allowed: at least 0"
    assert sentence in refuse(tmp_path, SMALLEST + "[limits]\nmin_free_disk_mb = 1e999\n")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config file .*absent\.toml; check the path"):
        load_config(tmp_path / "absent.toml", DeviceConfig)


def test_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read config file"):
        load_config(tmp_path, DeviceConfig)


def test_bad_toml_is_refused_with_its_place(tmp_path: Path) -> None:
    assert "is not valid TOML" in refuse(tmp_path, "id = \n")


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read config file"):
        load_config(path, DeviceConfig)


class Sensor(Section, frozen=True):
    pin: int
    offset: float = 0.0


class Board(Section, frozen=True):
    sensors: tuple[Sensor, ...] = ()
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    gains: dict[str, float] = msgspec.field(default_factory=dict)
    pins: tuple[Port, ...] = ()
    half: Annotated[float, msgspec.Meta(le=0.5, description="more is a whole")] | None = None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[sensors]]\npin = 1\n[[sensors]]\npni = 2\n", r"unknown key `sensors\[1\]\.pni`; did you mean `pin`"),
        ('[[sensors]]\npin = "x"\n', r"key `sensors\[0\]\.pin` has value 'x': expected `int`, got `str`"),
        ("pins = [1, 0]\n", r"key `pins\[1\]` has value 0: expected `int` >= 1; allowed: at least 1 and at most 65535"),
        ('[limits]\nheat = "x"\n', r"key `limits\[\.\.\.\]`: expected `int`, got `str`"),
        ("[[sensors]]\npin = 1\noffset = -inf\n", r"key `sensors\[0\]\.offset` has value -inf: not a finite number"),
        ("[gains]\nheat = nan\n", r"key `gains\[heat\]` has value nan: not a finite number"),
    ],
)
def test_fault_inside_a_list_or_a_free_table_is_a_sentence_too(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "board.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        load_config(path, Board)


def test_a_type_with_a_description_says_why_it_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text("half = 0.7\n")
    with pytest.raises(ConfigError, match=r"`half` has value 0\.7: .*allowed: at most 0\.5 \(more is a whole\)"):
        load_config(path, Board)
