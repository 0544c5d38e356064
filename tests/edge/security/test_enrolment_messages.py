"""The file that a new device is given."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import msgspec
import pytest
from fixtures.repository import DOCS

from sparsyedge.edge.config import DataConfig
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.enrolment_messages import DeviceFile, read_device_file, write_device_file

TOKEN = "9oJbN0iXW3yq2m8nZ5y7cQ4rT1uV6wX0aB3dE5fG7hI"


def device_file() -> DeviceFile:
    return DeviceFile(
        version=1,
        device="pi-01",
        fleet="default",
        host="coordinator.local",
        port=8883,
        enrol_port=8884,
        ca="-----BEGIN CERTIFICATE-----\n",
        signing_key="ab" * 32,
        token=TOKEN,
        data=DataConfig(dataset="digits"),
    )


def test_a_device_file_is_read_as_it_was_written_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "sparsyedge-device.json"
    write_device_file(path, device_file())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_device_file(path) == device_file()


def test_the_documented_device_file_is_a_valid_one(tmp_path: Path) -> None:
    text = (DOCS / "explanation" / "security.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json DeviceFile\n(.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "sparsyedge-device.json"
    path.write_text(example)
    assert read_device_file(path).device == "pi-01"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", "a/b"),
        ("device", "a+b"),
        ("device", "#"),
        ("device", ""),
        ("device", "@coordinator"),
        ("device", "x" * 64),
        ("port", 0),
        ("token", "short-secret"),
        ("signing_key", "xyz"),
        ("version", 2),
        ("token_until", 10**18),
        ("surprise", 1),
    ],
)
def test_a_device_file_with_a_wrong_value_is_refused_without_showing_its_token(
    tmp_path: Path, key: str, value: object
) -> None:
    path = tmp_path / "sparsyedge-device.json"
    path.write_text(json.dumps({**msgspec.to_builtins(device_file()), key: value}))
    with pytest.raises(SecurityError, match=key) as caught:
        read_device_file(path)
    assert TOKEN not in str(caught.value)
    assert "short-secret" not in str(caught.value)


def test_a_device_file_that_is_missing_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="No such file"):
        read_device_file(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_bytes(b"\xff{")
    with pytest.raises(SecurityError, match="not a valid"):
        read_device_file(tmp_path / "broken.json")
