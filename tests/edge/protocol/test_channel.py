"""The channel is free of MQTT: what talks over one can be imported, and run, without the MQTT client."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "sparsyedge.edge.protocol.channel",
        "sparsyedge.edge.protocol.chunks",
        "sparsyedge.edge.device.courier",
        "sparsyedge.edge.device.agent",
        "sparsyedge.coordinator.fleet.publisher",
        "sparsyedge.coordinator.fleet.inbox",
    ],
)
def test_whoever_talks_over_a_channel_does_not_import_the_mqtt_client(module: str) -> None:
    probe = f"import sys, {module}; print(*(name for name in sys.modules if name.split('.')[0] == 'paho'))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == ""
