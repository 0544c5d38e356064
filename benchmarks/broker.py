"""An MQTT broker inside this process, so that a demo needs nothing but pip; anything real uses Mosquitto."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from types import TracebackType
from typing import Any, Self

from amqtt.broker import Broker

from sparsyedge.edge.errors import LinkError

__all__ = ["LocalBroker", "free_port"]

log = logging.getLogger(__name__)

START_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class LocalBroker:
    """A broker on a free loopback port, running in a thread of its own while the `with` block lasts."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._broker: Broker | None = None

    def __enter__(self) -> Self:
        # It takes each refused MQTT 5 connect for an error, even an unhandled one; our link expects it and falls back.
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)
        logging.getLogger("transitions").setLevel(logging.CRITICAL)
        self._loop.set_exception_handler(lambda loop, context: log.debug("%s", context.get("message")))
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_LIMIT_S)
        except Exception as error:
            self._end_loop()
            raise LinkError(f"the demo's own broker did not start on {self.host}:{self.port}: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(STOP_LIMIT_S)
        except Exception:
            log.debug("the demo's broker did not stop in time", exc_info=True)
        self._end_loop()

    async def _start(self) -> None:
        self._broker = Broker(_config(self.host, self.port))
        await self._broker.start()

    async def _stop(self) -> None:
        if self._broker is not None:
            await self._broker.shutdown()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_LIMIT_S)


def _config(host: str, port: int) -> dict[str, Any]:
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
