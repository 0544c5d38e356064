"""Devices whose task names a web server: they fetch there, and from the broker if that fails."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import numpy as np
import pytest
from fixtures.fake_coordinator import FILES, SHAPES, Coordinator, frame_of, manifest, round_task
from fixtures.web_server import CuttingProxy, Nginx, Scripted, reply, unused_port

from sparsyedge.edge.device.agent import Agent
from sparsyedge.edge.protocol import http_download
from sparsyedge.edge.protocol.chunks import blob_of
from sparsyedge.edge.protocol.messages import Blob, DeviceStatus, Report, decode
from sparsyedge.edge.tensors import model_id

pytestmark = pytest.mark.timeout(300)
FETCHED = [manifest(), *(content for role, content in FILES.items() if role not in ("inference", "skeleton"))]
"""What a device needs for round 1."""


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_download, "RETRY_S", 0.01)


def serve(nginx: Nginx, *contents: bytes) -> None:
    for content in contents:
        (nginx.root / blob_of(content).sha256).write_bytes(content)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_device_fetches_from_the_server_and_asks_the_broker_for_nothing(
    nginx: Nginx, coordinator: Coordinator, make_agent: Callable[..., Agent], caplog: pytest.LogCaptureFixture
) -> None:
    serve(nginx, *FETCHED)
    coordinator.announce(round_task(blobs=nginx.url))
    make_agent().run()
    assert coordinator.fetched == []
    assert decode(coordinator.sent("report")[0], Report).bytes_down == sum(map(len, FETCHED))
    assert {request.path[1:] for request in nginx.requests()} == {blob_of(content).sha256 for content in FETCHED}
    assert warnings(caplog) == []


def test_bytes_are_counted_once_though_the_server_is_cut_off_again_and_again(
    nginx: Nginx, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    serve(nginx, *FETCHED)
    proxy = CuttingProxy(nginx.port, cut_after=2_000)
    coordinator.announce(round_task(blobs=proxy.url))
    try:
        make_agent().run()
    finally:
        proxy.close()
    assert coordinator.fetched == []
    assert any(request.status == 206 for request in nginx.requests())
    assert decode(coordinator.sent("report")[0], Report).bytes_down == sum(map(len, FETCHED))


def test_a_model_comes_from_the_server_in_a_later_round(
    nginx: Nginx, coordinator: Coordinator, make_agent: Callable[..., Agent]
) -> None:
    model = {name: np.full(shape, 2.0, dtype=np.float32) for name, shape in SHAPES.items()}
    frame = frame_of(model, base_id=model_id(model))
    serve(nginx, *FETCHED, frame)
    coordinator.announce(round_task(round=2, model_id=model_id(model), model=blob_of(frame), blobs=nginx.url))
    make_agent().run()
    assert coordinator.fetched == []
    assert len(coordinator.sent("report")) == 1


@pytest.mark.parametrize("what", ["down", "lying", "redirecting", "another scheme", "credentials"])
def test_a_server_that_fails_is_named_once_and_the_broker_is_asked_instead(
    what: str,
    coordinator: Coordinator,
    make_agent: Callable[..., Agent],
    scripted: Callable[..., Scripted],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lie = scripted(reply("200 OK", bytes(len(manifest()))))
    elsewhere = scripted(reply("302 Found", b"", f"Location: {lie.url}/x"))
    url, reason = {
        "down": (f"http://127.0.0.1:{unused_port()}", "Connection refused"),
        "lying": (lie.url, "has other bytes under"),
        "redirecting": (elsewhere.url, "it answers 302; devices follow no redirect"),
        "another scheme": ("file:///etc", "scheme 'file'; allowed: http, https"),
        "credentials": ("http://user:secret@127.0.0.1", "names a user"),
    }[what]
    coordinator.announce(round_task(blobs=url))
    make_agent().run()
    (said,) = warnings(caplog)
    assert reason in said
    assert said.endswith("; fetching from the broker, also for the next 300 s")
    assert "secret" not in said
    assert len(coordinator.fetched) == len(FETCHED)
    assert len(lie.requests) <= 1
    assert len(coordinator.sent("report")) == 1


def stop_when_unfit(agent: Agent, coordinator: Coordinator) -> None:
    publish = coordinator.publish

    def watched(topic: str, payload: bytes, *, retain: bool = False, timeout_s: float = 30.0) -> None:
        publish(topic, payload, retain=retain, timeout_s=timeout_s)
        if topic.endswith("/status") and decode(payload, DeviceStatus).unfit:
            agent.stop()

    coordinator.publish = watched  # type: ignore[method-assign]


def test_a_run_without_a_fallback_never_asks_the_broker_and_says_what_is_wrong(
    coordinator: Coordinator, make_agent: Callable[..., Agent], scripted: Callable[..., Scripted]
) -> None:
    server = scripted(reply("404 Not Found", b""))
    coordinator.announce(round_task(blobs=server.url, needs=("http-blobs",)))
    agent = make_agent()
    stop_when_unfit(agent, coordinator)
    agent.run()
    assert coordinator.fetched == []
    assert len(server.requests) == 3
    unfit = [decode(status, DeviceStatus).unfit for status in coordinator.sent("status")]
    assert any("it answers 404" in reason for reason in unfit)


def test_a_round_that_ends_drops_the_download(
    coordinator: Coordinator, make_agent: Callable[..., Agent], scripted: Callable[..., Scripted]
) -> None:
    def script(client: socket.socket, request: bytes) -> None:
        coordinator.announce(round_task(state="finished"))
        client.recv(1)

    coordinator.announce(round_task(blobs=scripted(script).url))
    make_agent().run()
    assert coordinator.fetched == []
    assert coordinator.sent("offer") == []


def test_a_blob_larger_than_allowed_is_not_even_asked_for(
    coordinator: Coordinator, make_agent: Callable[..., Agent], scripted: Callable[..., Scripted]
) -> None:
    server = scripted(reply("200 OK", b""))
    agent: Agent = make_agent()
    huge = Blob(sha256="a" * 64, bytes=1 << 30)
    coordinator.announce(round_task(blobs=server.url, manifest=huge))
    stop_when_unfit(agent, coordinator)
    agent.run()
    assert server.requests == []
