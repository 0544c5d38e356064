"""Where a device connects: to the brokers that its config names, or to one that it finds on the local network."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from sparsyedge.edge.config import DeviceConfig
from sparsyedge.edge.device.board_sign import BoardSign
from sparsyedge.edge.device.notify import Supervisor
from sparsyedge.edge.errors import ConfigError, LinkError
from sparsyedge.edge.protocol.finder import Finder
from sparsyedge.edge.protocol.route import Address, search_delay_s
from sparsyedge.edge.security.identity import Identity

__all__ = ["broker_places"]

log = logging.getLogger(__name__)

TICK_S = 1.0


def broker_places(
    config: DeviceConfig, identity: Identity | None, supervisor: Supervisor | None, sign: BoardSign | None = None
) -> tuple[list[Address], Callable[[], Sequence[Address]] | None]:
    """Return the places to try, and how to look for more if none of them answers.

    A device that knows no place waits for one, and says so, also by its `sign`; without a supervisor it looks once and
    raises LinkError.
    Raises ConfigError if a device without an identity is to look.
    """
    named = [Address(broker.host, broker.port) for broker in config.named_brokers]
    if identity is None:
        if config.find_broker:
            raise ConfigError(
                "key `find_broker` is true and `identity` is left out: anyone on the network can answer, and only the "
                "authority of a secured fleet tells who is who; enrol this device, or name its broker"
            )
        return named, None
    if named and not config.find_broker:
        return named, None
    finder = Finder(config.fleet, identity.tls.ca)
    return named or _wait_for_one(finder, supervisor, sign or BoardSign({})), finder.look


def _wait_for_one(finder: Finder, supervisor: Supervisor | None, sign: BoardSign) -> list[Address]:
    """Look until somebody announces the broker, ever more rarely. Says whom it waits for whenever that changes."""
    said, tries = "", 0
    while not (found := finder.look()):
        if supervisor is None:
            raise LinkError(finder.waiting)
        if finder.waiting != said:
            log.warning("%s", finder.waiting)
        said = finder.waiting
        sign.show("trouble", said)
        supervisor.ready()
        supervisor.status(said)
        until_s = time.monotonic() + search_delay_s(tries)
        while time.monotonic() < until_s:
            supervisor.alive()
            time.sleep(TICK_S)
        tries += 1
    log.info("somebody announces the fleet's broker at %s", ", ".join(map(str, found)))
    return found
