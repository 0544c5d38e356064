"""The page as a web application: its files, its events, its answers, and what the logged-in may do."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from sparsyedge.coordinator.web.actions import ACTIONS
from sparsyedge.coordinator.web.answers import FILES, device_answer, file_of, layers_answer
from sparsyedge.coordinator.web.guard import Guard
from sparsyedge.coordinator.web.hub import Hub
from sparsyedge.coordinator.web.login import SESSION_S, Login, Session
from sparsyedge.coordinator.web.picture import RunPicture
from sparsyedge.edge.errors import SparsyedgeError

__all__ = ["Page", "make_app"]

STATIC = Path(__file__).parent / "static"
BODY_LIMIT_S = 10.0
Handler = Callable[[Request], Awaitable[Response]]


class _Wish(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    device: str = ""
    token: str = ""


class Page:
    """The handlers of one run's page."""

    def __init__(self, run_dir: Path, login: Login, *, authority: Path | None, is_secure: bool) -> None:
        """`authority`: where revocations go; None if the fleet has none."""
        self.hub = Hub(RunPicture(run_dir))
        self.login = login
        self._run_dir = run_dir
        self._authority = authority
        self._is_secure = is_secure
        self._acting = asyncio.Lock()
        # The prefix makes browsers insist on TLS, and on this host alone.
        self._cookie = "__Host-sparsyedge" if is_secure else "sparsyedge"

    @property
    def scheme(self) -> str:
        """The beginning of the page's URL."""
        return "https" if self._is_secure else "http"

    def routes(self) -> list[BaseRoute]:
        """Every path that the page answers."""
        return [
            Route("/", self._index),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._enter, methods=["POST"]),
            Route("/logout", self._leave, methods=["POST"]),
            Route("/api/me", self._for_members(self._me)),
            Route("/api/events", self._for_members(self._events)),
            Route("/api/devices/{device}", self._for_members(self._device)),
            Route("/api/layers", self._for_members(self._layers)),
            Route("/api/actions/{action}", self._for_members(self._act), methods=["POST"]),
            Route("/files/{name}", self._for_members(self._file)),
            Route("/metrics", self._metrics),
            Mount("/static", _StaticFiles(directory=STATIC)),
        ]

    # ---- who is asking -----------------------------------------------------------------------------------------------

    def _session(self, request: Request) -> Session | None:
        return self.login.session(request.cookies.get(self._cookie))

    def _for_members(self, handler: Handler) -> Handler:
        async def check(request: Request) -> Response:
            if self._session(request) is None:
                return _say(401, "log in first")
            return await handler(request)

        return check

    async def _index(self, request: Request) -> Response:
        if self._session(request) is None:
            return RedirectResponse("/login", 303)
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-store"})

    async def _login_page(self, request: Request) -> Response:
        if self._session(request) is not None:
            return RedirectResponse("/", 303)
        return FileResponse(STATIC / "login.html", headers={"cache-control": "no-store"})

    async def _enter(self, request: Request) -> Response:
        """Log in. A cross-site form cannot: the gate wants our own Origin, and this wants JSON."""
        if not self.login.is_needed:
            return _say(409, "this page needs no login")
        if refusal := self._too_early(request):
            return refusal
        wish = await _wish(request)
        if isinstance(wish, Response):
            return wish
        address = _address(request)
        # Asked again: others may have tried from there while the body came in.
        if refusal := self._too_early(request):
            return refusal
        if not self.login.is_good(wish.token):
            self.login.attempts.note_wrong(address)
            return _say(401, "this is not the fleet's token for the page")
        self.login.attempts.forgive(address)
        response = PlainTextResponse("welcome\n")
        response.set_cookie(
            self._cookie,
            self.login.enter(),
            max_age=int(SESSION_S),
            path="/",
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )
        return response

    def _too_early(self, request: Request) -> Response | None:
        address = _address(request)
        wait_s = math.ceil(self.login.attempts.wait_s(address))
        if not wait_s:
            return None
        self.login.attempts.note_wrong(address)
        sentence = f"too many wrong tokens from your address; try again in {wait_s} s"
        return PlainTextResponse(f"{sentence}\n", 429, {"retry-after": str(wait_s)})

    async def _leave(self, request: Request) -> Response:
        session = self._session(request)
        if session is None or not _has_csrf(request, session):
            return _say(403, "reload the page and try again")
        self.login.leave(request.cookies.get(self._cookie))
        response = PlainTextResponse("goodbye\n")
        response.delete_cookie(self._cookie, path="/", secure=self._is_secure, httponly=True, samesite="strict")
        return response

    # ---- answers -----------------------------------------------------------------------------------------------------

    async def _me(self, request: Request) -> Response:
        session = self._session(request)
        assert session is not None
        return _json(
            {
                "csrf": session.csrf,
                "login": self.login.is_needed,
                "wrong_tokens": self.login.attempts.wrong_in_all,
                "can_revoke": self._authority is not None,
                "software": f"sparsyedge {metadata.version('sparsyedge')}",
            }
        )

    async def _events(self, request: Request) -> Response:
        if self.hub.is_full:
            return _say(503, "too many browsers watch this run; close one")
        stream = self.hub.stream(lambda: self._session(request) is not None)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _device(self, request: Request) -> Response:
        return await _answered(device_answer, self._run_dir, request.path_params["device"])

    async def _layers(self, request: Request) -> Response:
        return await _answered(layers_answer, self._run_dir)

    async def _file(self, request: Request) -> Response:
        path = file_of(self._run_dir, request.path_params["name"])
        if path is None:
            return _say(404, f"there is no such file; the page offers {', '.join(FILES)}, once the run has them")
        return FileResponse(path, filename=path.name, media_type="application/octet-stream")

    async def _metrics(self, request: Request) -> Response:
        if refusal := self._refuse_scraper(request):
            return refusal
        try:
            module = importlib.import_module("sparsyedge.coordinator.web.metrics")
        except ModuleNotFoundError:
            return _say(404, "this version of sparsyedge has no metrics here")
        try:
            body, content_type = await asyncio.to_thread(module.render, self._run_dir)
        except SparsyedgeError as error:
            return _say(503, str(error))
        return Response(body, headers={"content-type": content_type})

    def _refuse_scraper(self, request: Request) -> Response | None:
        """Prometheus has no cookies: it sends the token itself, which counts like any attempt."""
        if self._session(request) is not None:
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return PlainTextResponse("log in first\n", 401, {"www-authenticate": "Bearer"})
        if refusal := self._too_early(request):
            return refusal
        if not self.login.is_good(token):
            self.login.attempts.note_wrong(_address(request))
            return _say(401, "this is not the fleet's token for the page")
        return None

    async def _act(self, request: Request) -> Response:
        session, action = self._session(request), ACTIONS.get(request.path_params["action"])
        if session is None or not _has_csrf(request, session):
            return _say(403, "reload the page and try again")
        if action is None:
            return _say(404, f"there is no such action; known are {', '.join(ACTIONS)}")
        wish = await _wish(request)
        if isinstance(wish, Response):
            return wish
        async with self._acting:
            try:
                sentence = await asyncio.to_thread(action, self._run_dir, self._authority, wish.device)
            except SparsyedgeError as error:
                return _say(409, str(error))
        return PlainTextResponse(f"{sentence}\n")


class _StaticFiles(StaticFiles):
    """Files of the program, the same for everybody: a browser may keep them, but asks whether they changed."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["cache-control"] = "no-cache"
        return response


def make_app(page: Page, *, names: list[str]) -> Starlette:
    """Return the application behind its gate."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await page.hub.stop()

    gate = Middleware(Guard, names=names, scheme=page.scheme)
    return Starlette(routes=page.routes(), middleware=[gate], lifespan=lifespan)


async def _wish(request: Request) -> _Wish | Response:
    """Read the body of a POST: small, soon, JSON, and nothing unknown in it."""
    if request.headers.get("content-type") != "application/json":
        return _say(415, "send application/json")
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            return msgspec.json.decode(await request.body(), type=_Wish)
    except TimeoutError:
        return _say(408, "the request took too long")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _say(400, "the request is not what this page sends")


async def _answered(answer: Callable[..., Any], *arguments: Any) -> Response:
    try:
        found = await asyncio.to_thread(answer, *arguments)
    except SparsyedgeError as error:
        return _say(503, str(error))
    return _say(404, "the run has not heard of that device") if found is None else _json(found)


def _has_csrf(request: Request, session: Session) -> bool:
    return hmac.compare_digest(request.headers.get("x-csrf-token", "").encode(), session.csrf.encode())


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


def _say(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status)
