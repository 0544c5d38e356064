"""Tells systemd that the device is up and alive: a minimal sd_notify that does nothing without systemd."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

__all__ = ["Supervisor"]


class Supervisor:
    """The service manager that started this process, if one did; without it every call does nothing."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        found = os.environ if environment is None else environment
        self._address = found.get("NOTIFY_SOCKET", "")
        # Half the interval, as sd_watchdog_enabled(3) advises.
        self._every_s = int(found.get("WATCHDOG_USEC") or 0) / 2e6
        self._clock = clock
        self._said_s = -self._every_s

    @property
    def is_there(self) -> bool:
        """Whether a service manager is listening; it would restart this process if it ended."""
        return bool(self._address)

    def ready(self) -> None:
        """Report that the device is up: it has joined its fleet, or is waiting to be admitted."""
        self._send("READY=1")

    def alive(self) -> None:
        """Report that the device's main thread is alive; call it often, it sends only when due."""
        if self._every_s and self._clock() - self._said_s >= self._every_s:
            self._said_s = self._clock()
            self._send("WATCHDOG=1")

    def status(self, sentence: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={sentence}")

    def _send(self, message: str) -> None:
        if self._address:
            # A leading @ stands for the zero byte of an abstract socket.
            address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.connect(address)
                channel.send(message.encode())
