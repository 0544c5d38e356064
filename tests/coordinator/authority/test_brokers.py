"""One run over each kind of broker that the protocol supports: whole models down, whole updates up."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.broker import Broker
from fixtures.dense_way import average
from fixtures.scripted_fleet import Fleet, answer

from sparsyedge.edge.model.artifacts import Artifacts
from sparsyedge.edge.protocol import mqtt
from sparsyedge.edge.protocol.messages import CHUNK_BYTES, Accepted
from sparsyedge.edge.tensors import State, model_id


@pytest.mark.parametrize(
    ("kind", "smallest", "largest"),
    [
        # MQTT 3.1.1, which announces no maximum packet size
        pytest.param("amqtt", CHUNK_BYTES, CHUNK_BYTES, marks=pytest.mark.heavy),
        # MQTT 3.1.1, and the node of a cluster
        pytest.param("nats_node", CHUNK_BYTES, CHUNK_BYTES, marks=pytest.mark.heavy),
        # MQTT 5 without a limit, and nothing on disk
        pytest.param("broker", 256 * 1024, 256 * 1024, marks=pytest.mark.mosquitto),
        # MQTT 5 with packets of 128 KB at most
        pytest.param("capped_broker", CHUNK_BYTES, 131_072 - 1, marks=pytest.mark.mosquitto),
    ],
)
def test_a_run_is_the_same_over_any_broker(
    kind: str,
    smallest: int,
    largest: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    artifacts: Artifacts,
    initial: State,
) -> None:
    play(Fleet(request.getfixturevalue(kind).port, tmp_path, artifacts, initial), smallest, largest)


@pytest.mark.mosquitto
def test_a_run_needs_nothing_of_mqtt_5(
    broker: Broker, tmp_path: Path, artifacts: Artifacts, initial: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "speaks_mqtt_5", lambda *_: False)
    play(Fleet(broker.port, tmp_path, artifacts, initial), CHUNK_BYTES, CHUNK_BYTES)


def play(fleet: Fleet, smallest: int, largest: int) -> None:
    """Two rounds with two devices: models down, updates up, and the average of them in the end."""
    run = fleet.start(cohort_size=2)
    try:
        devices = fleet.join("d1", "d2")
        for number in (1, 2):
            for device in devices:
                task = device.until_round(number)
                assert smallest <= task.model.chunk_bytes <= largest
                if number == 2:
                    assert model_id(device.download(task)) == task.model_id
                assert isinstance(device.deliver(task), Accepted)
        expected = average((10 * int(name[-1]), answer(name, 2, fleet.initial)) for name in ("d1", "d2"))
        assert run.result().run.model_id == model_id(expected)
    finally:
        for device in fleet.devices:
            device.link.close()
