"""The application: which request goes where, and the engine's answers on their way to the client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from ..engine import Engine, routes
from ..engine_aio import AsyncResponse
from ..engine_channel import File
from ..engine_state import EngineState
from ..errors import ClosedError, EngineError
from .flags import Settings
from .http import Disconnected, Exchange, HTTPError, Keys, preflight
from .sleep import Sleep

logger = logging.getLogger("pyggml.serve")
access = logging.getLogger("pyggml.serve.access")

PUBLIC = {"/health", "/v1/health"}  # llama-server's
_SECRET = {"authorization", "x-api-key", "cookie", "proxy-authorization"}
_CONTROL = {("POST", "/sleep"), ("POST", "/wake"), ("GET", "/is_sleeping")}


class Routes:
    """The paths that are known, and their methods."""

    def __init__(self) -> None:
        self._methods: dict[str, set[str]] = {}
        for method, path in [*routes(), *_CONTROL]:
            self._methods.setdefault(path, set()).add(method)
        # "/slots/:id" varies in its last part
        self._varying = [(path.rpartition("/:")[0] + "/", path) for path in self._methods if "/:" in path]

    def check(self, method: str, path: str) -> None:
        """Raises HTTPError: 404 or 405."""
        found = self._methods.get(path)
        if found is None:
            for start, pattern in self._varying:
                if path.startswith(start) and path[len(start) :].isalnum():
                    found = self._methods[pattern]
        if found is None or "/:" in path:
            raise HTTPError(404, "File Not Found")
        if method not in found:
            raise HTTPError(405, "This path has no such method", [("allow", ", ".join(sorted(found)))])


class App:
    """The ASGI application of one engine."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._keys = Keys(settings.api_keys)
        self._routes = Routes()
        self._sleep = Sleep(engine, settings.sleep_mode, settings.sleep_idle_seconds, settings.drain_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        start = time.perf_counter()
        exchange = Exchange(scope, receive, send, self._settings)
        note = ""
        try:
            note = await self._answer(exchange)
        except Disconnected:
            note = " (the client went away)"
        except asyncio.CancelledError:
            note = " (ended by the server)"
            with contextlib.suppress(asyncio.CancelledError, Disconnected):
                await exchange.cut_off(503, "The server is shutting down")
        finally:
            peer = scope.get("client") or ("unix", 0)
            path = exchange.path.encode("unicode_escape").decode()  # one line, whatever it is
            took = 1000 * (time.perf_counter() - start)
            access.info("%s %s %s %d %.1f ms%s", peer[0], exchange.method, path, exchange.status, took, note)

    async def _answer(self, exchange: Exchange) -> str:
        try:
            await self._dispatch(exchange)
        except HTTPError as error:
            if exchange.status:
                raise
            await exchange.fail(error)
        except ClosedError:
            await exchange.fail(HTTPError(503, "The server is shutting down"))
        except (Disconnected, asyncio.CancelledError):
            raise
        except Exception:
            logger.exception("%s %s failed", exchange.method, exchange.path)
            if exchange.status:
                raise
            await exchange.fail(HTTPError(500, "Internal error"))
        return ""

    async def _dispatch(self, exchange: Exchange) -> None:
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if method == "OPTIONS":
            await exchange.answer(200, b"", preflight(self._settings))
            return
        path = exchange.path
        if prefix := self._settings.api_prefix:
            if not path.startswith(prefix + "/"):
                raise HTTPError(404, "File Not Found")
            path = path[len(prefix) :]
        if self._engine.state is EngineState.LOADING:
            raise HTTPError(503, "Loading model")
        if path not in PUBLIC and not self._keys.allow(exchange.headers):
            raise HTTPError(401, "Invalid API Key", [("www-authenticate", "Bearer")])
        self._routes.check(method, path)
        body, files = await exchange.body(), None
        if (method, path) in _CONTROL:
            await self._control(exchange, path, body)
            return
        if exchange.headers.get("content-type", "").startswith("multipart/form-data"):
            body, files = await exchange.form(body)
        await _while_there(exchange, lambda: self._relay(exchange, method, path, body, files))

    async def _control(self, exchange: Exchange, path: str, body: bytes) -> None:
        if path == "/sleep":
            await exchange.answer(200, await self._sleep.sleep(body))
        elif path == "/wake":
            await exchange.answer(200, await self._sleep.wake())
        else:
            await exchange.answer(200, self._sleep.state())

    async def _relay(
        self, exchange: Exchange, method: str, path: str, body: bytes, files: dict[str, File] | None
    ) -> None:
        headers = {name: value for name, value in exchange.headers.items() if name not in _SECRET}
        route = f"{path}?{exchange.query}" if exchange.query else path
        try:
            response = await self._engine.aio.request(route, body, method=method, headers=headers, files=files)
        except ValueError as error:
            if isinstance(error, ClosedError):
                raise
            raise HTTPError(400, "The request has a character that is not allowed") from None
        async with response:
            if response.content_type.startswith("text/event-stream"):
                await _stream(exchange, response)
            else:
                await self._plain(exchange, method, path, response)

    async def _plain(self, exchange: Exchange, method: str, path: str, response: AsyncResponse) -> None:
        try:
            body = await response.read()
        except EngineError as error:
            raise HTTPError(error.status, str(error)) from None
        headers = list(response.headers.items())
        if response.status == 200 and method == "GET":
            if path == "/props":
                body = self._sleep.props(body)
            elif path == "/metrics":
                body += self._sleep.metrics()
        await exchange.answer(response.status, body, headers)


async def _stream(exchange: Exchange, response: AsyncResponse) -> None:
    headers = {"cache-control": "no-cache", **response.headers, "x-accel-buffering": "no"}
    await exchange.send_head(response.status, list(headers.items()))
    try:
        async for data in response:
            await exchange.send_piece(data, True)
    except EngineError as error:
        await exchange.cut_off(error.status, str(error))
        return
    await exchange.send_piece(b"", False)


async def _while_there(exchange: Exchange, work: Callable[[], Awaitable[None]]) -> None:
    """Do it, unless the client goes away meanwhile. Raises Disconnected."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        await exchange.watch()
        if not exchange.complete:  # after the answer the server says it, too
            gone = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work()
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise Disconnected from None
        raise
    finally:
        watcher.cancel()
