"""Serves a run's page: open on loopback, with TLS and a login anywhere else."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.page_access import Pair, page_certificate, page_token_sha256
from sparsyedge.coordinator.web.address import Address
from sparsyedge.coordinator.web.app import Page, make_app
from sparsyedge.coordinator.web.guard import LOCAL_NAMES
from sparsyedge.coordinator.web.login import Login
from sparsyedge.edge.errors import ConfigError

__all__ = ["Access", "choose_access", "serve"]

MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 256
REQUEST_LIMIT_S = 20.0
KEEP_ALIVE_S = 15
LEAVE_S = 2


@dataclass(frozen=True)
class Access:
    """How browsers reach a page, and who may."""

    names: tuple[str, ...]
    """What the page may be called in an address bar."""
    authority: Path | None
    """Where revocations go, and where the token's hash is, if there is a login."""
    pair: Pair | None
    """The certificate; None for a page that is open, on loopback."""

    @property
    def scheme(self) -> str:
        """The beginning of the page's URL."""
        return "http" if self.pair is None else "https"


def choose_access(address: Address, *, authority: Path | None, given: Pair | None, login: bool) -> Access:
    """Say how the page may be reached there; raises ConfigError or SecurityError if it would be unprotected."""
    if address.is_loopback and given is None and not login:
        return Access((*LOCAL_NAMES, address.name), authority, None)
    if authority is None:
        raise ConfigError(
            f"the page at {address.host} would be open to everybody who can reach it; it needs the authority of a "
            f"fleet for a login and TLS: name its folder with --authority (`sparsyedge coordinator init` makes one), "
            f"or stay on 127.0.0.1 and reach it through ssh -L"
        )
    opened = Authority.open(authority)
    page_token_sha256(authority)
    hosts = [] if address.ip.is_unspecified else [str(address.ip)]
    pair = given or page_certificate(opened, hosts)
    return Access(pair.names(), authority, pair)


def serve(run_dir: Path, listener: socket.socket, access: Access) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    login = Login(access.authority if access.pair else None)
    page = Page(run_dir, login, authority=access.authority, is_secure=access.pair is not None)
    server = _Server(_config(make_app(page, names=list(access.names)), access.pair), page)
    server.run(sockets=[listener])


def _config(app: Starlette, pair: Pair | None) -> uvicorn.Config:
    # A browser that goes away in the middle is no news.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    files: dict[str, Any] = {}
    if pair is not None:
        files = {"ssl_certfile": pair.certificate, "ssl_keyfile": pair.key}
    config = uvicorn.Config(
        app,
        http=_BoundedHttp,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LEAVE_S,
        **files,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the certificate {pair and pair.certificate}: {error}") from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


class _Server(uvicorn.Server):
    """Ends the streams of events first: uvicorn waits for every answer to be complete."""

    def __init__(self, config: uvicorn.Config, page: Page) -> None:
        super().__init__(config)
        self._page = page

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._page.hub.close()


class _BoundedHttp(H11Protocol):
    """Closes connections that are too many, or that say nothing whole for too long."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MAX_CONNECTIONS:
            transport.abort()
            return
        super().connection_made(transport)
        self.loop.call_later(REQUEST_LIMIT_S, self._give_up_on_silence)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is not None:
            super().connection_lost(exc)

    def _give_up_on_silence(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()
