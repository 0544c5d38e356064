from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparsyedge.edge.device.notify import Supervisor


def heard(server: socket.socket) -> list[str]:
    server.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(server.recv(4096).decode())
        except BlockingIOError:
            return messages


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_says_that_it_is_ready(tmp_path: Path, abstract: bool) -> None:
    name = f"@{tmp_path.name}-notify" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0{name[1:]}" if abstract else name)
        supervisor = Supervisor({"NOTIFY_SOCKET": name})
        supervisor.ready()
        supervisor.status("waiting")
        supervisor.alive()
        assert heard(server) == ["READY=1", "STATUS=waiting"]


def test_the_watchdog_is_fed_twice_per_interval_however_often_it_is_called(tmp_path: Path) -> None:
    now_s = [100.0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"}
        supervisor = Supervisor(environment, clock=lambda: now_s[0])
        for _ in range(61):
            supervisor.alive()
            now_s[0] += 1.0
        assert heard(server) == ["WATCHDOG=1"] * 3


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(socket, "socket", lambda *arguments: opened.append(arguments))
    supervisor = Supervisor({})
    supervisor.ready()
    supervisor.alive()
    assert opened == []
