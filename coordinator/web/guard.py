"""The page's outer gate: who may ask at all, how much, and what browsers are told never to do with the answer."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MAX_BODY", "Guard"]

MAX_BODY = 4096
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Checks every request before the application sees it, and adds the same headers to every answer."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], scheme: str) -> None:
        """`names`: what the page may be called in a browser's address bar; a leading `*.` stands for one word."""
        self._app = app
        self._names = frozenset(_plain(name) for name in names)
        self._scheme = scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refuse(scope)
        app = self._app if refusal is None else refusal

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await app(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> PlainTextResponse | None:
        headers, method = Headers(scope=scope), scope["method"]
        hosts = headers.getlist("host")
        # A site that points its own name at this machine would otherwise read the page as if it were its own.
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return _say(421, "this page does not answer to that name; use the address that it printed at its start")
        if method not in ("GET", "HEAD", "POST"):
            return _say(405, "only GET, HEAD and POST are allowed")
        origin = headers.get("origin")
        if origin != f"{self._scheme}://{hosts[0]}" and (origin is not None or method == "POST"):
            return _say(403, "this request comes from another site")
        if scope["path"] not in ("/", "/login") and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return _say(403, "this request comes from another site")
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not (length.isdecimal() and int(length) <= MAX_BODY):
            return _say(413, f"at most {MAX_BODY} bytes are allowed, with a Content-Length")
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if any(sign in host for sign in "@/?#\\ "):
            return False
        name = _plain(name)
        return name in self._names or f"*.{name.partition('.')[2]}" in self._names


def _plain(name: str) -> str:
    """One spelling for each name or address."""
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return name.lower().rstrip(".")


def _say(status: int, sentence: str) -> PlainTextResponse:
    return PlainTextResponse(f"{sentence}\n", status, {"connection": "close"})
