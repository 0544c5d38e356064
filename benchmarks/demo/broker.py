"""An MQTT broker in its own process, which lets the demo run with pip alone; real fleets use Mosquitto."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from sparsyedge.benchmarks.common.ports import LOOPBACK, free_port
from sparsyedge.edge.errors import LinkError

__all__ = ["LocalBroker"]

START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
POLL_S = 0.05


class LocalBroker:
    """An amqtt broker on a loopback port; it runs during the `with` block, or from `start` to `stop`.

    It forgets everything when it stops, and ends when its parent process dies.
    """

    def __init__(self, port: int | None = None) -> None:
        self.host = LOOPBACK
        self.port = free_port() if port is None else port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparsyedge.benchmarks.demo.broker", str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Only the demo gets Ctrl-C; it then stops its parts in order.
            start_new_session=True,
        )
        try:
            self._await_listener(self._process)
        except LinkError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process; does nothing if the broker is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        # Kill it: it stores nothing, and amqtt's own shutdown may wait for its clients' keepalive.
        process.kill()
        process.communicate(timeout=STOP_LIMIT_S)

    def _await_listener(self, process: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until_s and process.poll() is None:
            try:
                socket.create_connection((self.host, self.port), timeout=1.0).close()
            except OSError:
                time.sleep(POLL_S)
            else:
                return
        state = "does not listen" if process.poll() is None else f"ended with exit code {process.returncode}"
        raise LinkError(
            f"the demo's own broker {state} on {self.host}:{self.port} after at most {START_LIMIT_S:.0f} s; "
            f"`{sys.executable} -m sparsyedge.benchmarks.demo.broker {self.port}` shows why"
        )


async def _serve(port: int) -> None:
    """Serve until standard input ends, at the latest when the parent process dies."""
    from amqtt.broker import Broker

    # amqtt logs each refused MQTT 5 connect as an error, even an unhandled one. Our link expects it and falls back.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    _pass_on_before_goodbye()
    broker = Broker(_config(port))
    await broker.start()
    await asyncio.to_thread(sys.stdin.buffer.read)


def _pass_on_before_goodbye() -> None:
    """Let amqtt pass on what a client was acknowledged for before it lets the client go.

    amqtt 0.12 drops what is still queued then; on Python 3.13 that is most of what a client sends before it leaves.
    """
    from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler

    let_go = BrokerProtocolHandler.handle_disconnect
    left: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    async def handle_disconnect(self: Any, packet: Any) -> None:
        # The closed connection that follows a goodbye must not pass for a lost one, whose last will is due.
        packet = left.setdefault(self, packet)
        until_s = time.monotonic() + STOP_LIMIT_S
        while self.session is not None and not self.session.delivered_message_queue.empty():
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(POLL_S)
        await let_go(self, packet)

    BrokerProtocolHandler.handle_disconnect = handle_disconnect


def _config(port: int) -> dict[str, Any]:
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{LOOPBACK}:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sparsyedge.benchmarks.demo.broker", description=__doc__)
    parser.add_argument("port", type=int)
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    _main()
