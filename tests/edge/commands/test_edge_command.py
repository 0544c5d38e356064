from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fixtures.broker import Broker

from sparsyedge.edge.commands.edge_command import load_data
from sparsyedge.edge.config import DataConfig, PartitionConfig
from sparsyedge.edge.errors import ConfigError, DataError
from sparsyedge.edge.protocol.channel import Received
from sparsyedge.edge.protocol.messages import DeviceStatus, decode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.protocol.topics import Topics

SAMPLES = 40
START_S = 60.0


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    path = tmp_path / "own.npz"
    x = np.arange(SAMPLES * 3 * 4 * 4, dtype=np.uint32).astype(np.uint8).reshape(SAMPLES, 3, 4, 4)
    y = np.arange(SAMPLES) % 4
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def partition(index: int) -> PartitionConfig:
    return PartitionConfig(devices=4, index=index, alpha=1.0, seed=3)


def test_device_without_a_partition_trains_on_all_samples(own_data: Path) -> None:
    assert len(load_data(DataConfig(dataset=str(own_data))).train) == SAMPLES


def test_shares_of_all_devices_make_up_the_data_set(own_data: Path) -> None:
    shares = [load_data(DataConfig(dataset=str(own_data), partition=partition(index))).train for index in range(4)]
    first_pixels = np.concatenate([share.x.reshape(len(share), -1) for share in shares])
    everything = load_data(DataConfig(dataset=str(own_data))).train.x.reshape(SAMPLES, -1)
    assert sorted(map(bytes, first_pixels)) == sorted(map(bytes, everything))


def test_share_that_does_not_exist_is_refused(own_data: Path) -> None:
    with pytest.raises(ConfigError, match=r"`data\.partition\.index` has value 4, allowed are 0\.\.3 for 4 devices"):
        load_data(DataConfig(dataset=str(own_data), partition=partition(4)))


def test_data_set_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DataError, match="did you mean cifar10"):
        load_data(DataConfig(dataset="cifar_10"))


@pytest.mark.mosquitto
def test_device_says_that_it_comes_and_when_it_is_told_to_stop_that_it_goes(
    mosquitto: int, own_data: Path, tmp_path: Path
) -> None:
    config = tmp_path / "device.toml"
    config.write_text(
        f'id = "pi-01"\nwork_dir = "{tmp_path}"\nmeter = "none"\n'
        f'[broker]\nport = {mosquitto}\n[data]\ndataset = "{own_data}"\n'
    )
    watcher = Link("127.0.0.1", mosquitto, identity="watcher")
    watcher.subscribe(Topics("default").status("pi-01"))
    watcher.open()
    command = [sys.executable, "-m", "sparsyedge.edge", "--config", str(config)]
    device = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        online = next_status(watcher)
        device.send_signal(signal.SIGTERM)
        _, log = device.communicate(timeout=START_S)
        offline = next_status(watcher)
    finally:
        device.kill()
        watcher.close()
    assert (online.state, online.samples) == ("online", SAMPLES)
    assert (offline.state, offline.boot_id) == ("offline", online.boot_id)
    assert device.returncode == 0
    assert "Traceback" not in log
    assert "INFO pi-01 got SIGTERM; stopping" in log


@pytest.mark.mosquitto
def test_a_device_that_cannot_start_leaves_the_reason_with_the_broker(mosquitto: int, tmp_path: Path) -> None:
    config = tmp_path / "device.toml"
    config.write_text(
        f'id = "pi-01"\nwork_dir = "{tmp_path}"\n[broker]\nport = {mosquitto}\n[data]\ndataset = "absent.npz"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "sparsyedge.edge", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 2
    assert "absent.npz is not a file" in done.stderr
    # Connect only now, like a coordinator that starts later.
    watcher = Link("127.0.0.1", mosquitto, identity="watcher")
    watcher.subscribe(Topics("default").status("pi-01"))
    watcher.open()
    try:
        status = next_status(watcher)
    finally:
        watcher.close()
    assert status.state == "offline"
    assert "absent.npz is not a file" in status.unfit


@pytest.mark.mosquitto
def test_a_device_that_cannot_write_leaves_word_and_ends_with_a_sentence(
    mosquitto: int, own_data: Path, tmp_path: Path
) -> None:
    # A full or read-only disk fails at the same call; a read-only folder would not stop root.
    (tmp_path / "file").touch()
    config = tmp_path / "device.toml"
    config.write_text(
        f'id = "pi-01"\nwork_dir = "{tmp_path}/file/work"\nmeter = "none"\n'
        f'[broker]\nport = {mosquitto}\n[data]\ndataset = "{own_data}"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "sparsyedge.edge", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot write to" in done.stderr
    assert "choose another `work_dir`" in done.stderr
    assert "Traceback" not in done.stderr
    watcher = Link("127.0.0.1", mosquitto, identity="watcher")
    watcher.subscribe(Topics("default").status("pi-01"))
    watcher.open()
    try:
        assert next_status(watcher).unfit.startswith("cannot write to")
    finally:
        watcher.close()


@pytest.mark.mosquitto
def test_a_device_that_was_suspended_for_days_comes_back(broker: Broker, own_data: Path, tmp_path: Path) -> None:
    config = tmp_path / "device.toml"
    config.write_text(
        f'id = "pi-01"\nwork_dir = "{tmp_path}"\nmeter = "none"\n'
        f'[broker]\nport = {broker.port}\n[data]\ndataset = "{own_data}"\n'
    )
    command = [sys.executable, "-m", "sparsyedge.edge", "--config", str(config)]
    device = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        first = status_of(broker)
        device.send_signal(signal.SIGSTOP)
        # When it wakes up, its connection and session are gone and the broker has forgotten it.
        broker.stop()
        broker.start()
        device.send_signal(signal.SIGCONT)
        again = status_of(broker)
        device.send_signal(signal.SIGTERM)
        _, log = device.communicate(timeout=START_S)
    finally:
        device.kill()
        device.wait()
    assert (again.state, again.boot_id) == ("online", first.boot_id)
    assert device.returncode == 0
    assert "Traceback" not in log


def status_of(broker: Broker) -> DeviceStatus:
    watcher = Link("127.0.0.1", broker.port, identity="watcher")
    watcher.subscribe(Topics("default").status("pi-01"))
    watcher.open()
    try:
        return next_status(watcher)
    finally:
        watcher.close()


def next_status(watcher: Link) -> DeviceStatus:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        event = watcher.receive(0.5)
        if isinstance(event, Received):
            return decode(event.payload, DeviceStatus)
    pytest.fail("the device said nothing")
