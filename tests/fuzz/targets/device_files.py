"""sparsyedge-device.json, and the config that an enrolment makes of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from sparsyedge.edge.commands.enrol_command import _config
from sparsyedge.edge.config import BrokerConfig, DataConfig, DeviceConfig, PartitionConfig, broker_list, read_section
from sparsyedge.edge.errors import SecurityError
from sparsyedge.edge.security.enrolment_messages import DeviceFile, parse_device_file
from sparsyedge.edge.toml_text import toml_text

HONEST = DeviceFile(
    version=1,
    device="pi-01",
    fleet="default",
    host="coordinator.local",
    port=8883,
    enrol_port=8884,
    ca="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    signing_key="d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    token="9oJbN0iXW3yq2m8nZ5y7cQ4rT1uV6wX0aB3dE5fG7hI",
    token_until=1_800_000_000,
    data=DataConfig(dataset="digits", data_dir="/data", partition=PartitionConfig(devices=2, index=0)),
)


def seeds() -> list[bytes]:
    bare = msgspec.structs.replace(HONEST, token=None, token_until=None, data=None)
    clustered = msgspec.structs.replace(HONEST, others=(BrokerConfig(host="b"), BrokerConfig(host="c", port=8883)))
    return [
        msgspec.json.encode(clustered),
        msgspec.json.encode(HONEST),
        msgspec.json.format(msgspec.json.encode(HONEST)),
        msgspec.json.encode(bare),
    ]


def check(data: bytes) -> None:
    try:
        device = parse_device_file(data, "device.json")
    except SecurityError as error:
        _require_no_token(str(error))
        return
    if device.data is not None:
        text = toml_text(msgspec.to_builtins(_config(device, Path("/identity"), device.data, work_dir="/work")))
        config = read_section(tomllib.loads(text), DeviceConfig)
        first, *others = broker_list(config.broker)
        assert (config.data, first.host, tuple(others)) == (device.data, device.host, device.others), (
            "the config says something else"
        )


def _require_no_token(text: str) -> None:
    assert str(HONEST.token) not in text, "a token in an error"
