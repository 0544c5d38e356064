from __future__ import annotations

from pathlib import Path

import pytest

from sparsyedge.edge.cli import main
from sparsyedge.edge.config import DeviceConfig, load_config

CONFIG = """\
id = "pi-07"
fleet = "lab"
threads = 4
[broker]
host = "10.0.0.2"
port = 8883
[data]
dataset = "digits"
[limits]
max_temperature_c = 80.0
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "device.toml"
    path.write_text(CONFIG)
    return path


def configure(config: Path, changes: str) -> int:
    path = config.with_name("changes.toml")
    path.write_text(changes)
    return main(["edge", "configure", str(config), str(path)])


def test_only_the_named_keys_change(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert configure(config, 'threads = 2\n[broker]\nhost = "10.0.0.9"\n[limits]\nwifi_only = true\n') == 0
    assert "broker, limits, threads changed" in capsys.readouterr().out
    changed = load_config(config, DeviceConfig)
    assert (changed.id, changed.fleet, changed.threads) == ("pi-07", "lab", 2)
    assert (changed.limits.max_temperature_c, changed.limits.wifi_only) == (80.0, True)
    assert changed.broker == load_config(config, DeviceConfig).broker
    assert 'host = "10.0.0.9"\nport = 8883' in config.read_text()


def test_what_is_set_already_leaves_the_file_alone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert configure(config, "threads = 4\n") == 0
    assert "nothing changed" in capsys.readouterr().out
    assert config.read_text() == CONFIG


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ("threads = 0\n", "threads"),
        ("thread = 2\n", "did you mean `threads`?"),
        ('id = "pi-08"\n', "key `id` is the device's identity"),
        ("threads = \n", "is not valid TOML"),
        ("threads = 3\n[limits]\nmax_temperature_c = 900\n", "at most 120"),
    ],
)
def test_a_wrong_change_changes_nothing(
    config: Path, capsys: pytest.CaptureFixture[str], changes: str, sentence: str
) -> None:
    assert configure(config, changes) == 2
    assert sentence in capsys.readouterr().err
    assert config.read_text() == CONFIG
