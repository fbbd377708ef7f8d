"""What the server reads from a client and how it answers: bodies, forms, errors in OpenAI's form, keys, origins."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Message, Receive, Scope, Send

from ..engine_channel import File
from .flags import Settings

RETRY_AFTER = 5  # seconds: what a client is told that comes while there is no model

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    499: "cancelled_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class HTTPError(Exception):
    """Ends a request with an error."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)


class Disconnected(Exception):
    """The client is gone."""


def error_body(status: int, message: str) -> bytes:
    return encode({"error": {"message": message, "type": TYPES.get(status, "server_error"), "code": status}})


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Exchange:
    """A request and its answer, for one task."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self._receive, self._send, self._settings = receive, send, settings
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = {
            name.decode("latin-1"): value.decode("utf-8", "surrogateescape") for name, value in scope["headers"]
        }
        self.cors = _origin(self.headers.get("origin", ""), settings)
        self.status = 0
        """Of the answer, once its head is sent."""
        self.complete = False

    async def watch(self) -> None:
        """Returns when the client is gone. For when the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _piece(self) -> Message:
        try:
            async with asyncio.timeout(self._settings.timeout):
                message = await self._receive()
        except TimeoutError:
            raise HTTPError(408, "The request did not come in time", [("connection", "close")]) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        return message

    async def body(self) -> bytes:
        """Raises HTTPError, Disconnected."""
        limit = self._settings.body_limit
        length = self.headers.get("content-length", "")
        too_large = length.isdigit() and int(length) > limit
        if too_large and "expect" in self.headers:
            raise self._too_large()  # before it is sent
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._piece()
            piece, more = message.get("body", b""), message.get("more_body", False)
            size += len(piece)
            if size > limit or too_large:
                # most clients read no answer before they have sent all, so a little more is read, and forgotten
                too_large = True
                pieces.clear()
                if size > 2 * limit + (16 << 20):
                    break
            else:
                pieces.append(piece)
        if too_large:
            raise self._too_large()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_large(self) -> HTTPError:
        limit = self._settings.body_limit / (1 << 20)
        return HTTPError(413, f"The request is larger than {limit:g} MiB", [("connection", "close")])

    async def form(self, body: bytes) -> tuple[bytes, dict[str, File]]:
        """A multipart body as the engine takes it: fields as JSON, and files."""
        from starlette.datastructures import Headers, UploadFile

        async def once() -> Any:
            yield body

        headers = Headers({"content-type": self.headers["content-type"]})
        try:
            data = await MultiPartParser(headers, once(), max_part_size=self._settings.body_limit).parse()
        except (MultiPartException, KeyError, ValueError):
            raise HTTPError(400, "The form is malformed") from None
        fields: dict[str, Any] = {}
        files: dict[str, File] = {}
        for name, value in data.multi_items():
            if isinstance(value, UploadFile):
                content_type = value.content_type or "application/octet-stream"
                files[name] = File(value.filename or "", await value.read(), content_type)
            elif name not in fields:
                fields[name] = value
            else:
                before = fields[name]
                fields[name] = [*before, value] if isinstance(before, list) else [before, value]
        await data.close()
        return encode(fields), files

    # -- the answer ------------------------------------------------------------------------------------------------------

    async def send_head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        if status == 503:
            headers = [*headers, ("retry-after", str(RETRY_AFTER))]
        pairs = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in (*headers, *self.cors)]
        self.status = status
        await self._timed({"type": "http.response.start", "status": status, "headers": pairs})

    async def send_piece(self, data: bytes, more: bool) -> None:
        self.complete = not more
        await self._timed({"type": "http.response.body", "body": data, "more_body": more})

    async def _timed(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._send(message)
        except TimeoutError:
            raise Disconnected from None  # it does not read

    async def answer(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        """All of an answer at once."""
        names = {name for name, _ in headers}
        if "content-type" not in names:
            headers = [("content-type", "application/json; charset=utf-8"), *headers]
        await self.send_head(status, [*headers, ("content-length", str(len(body)))])
        await self.send_piece(body, False)

    async def fail(self, error: HTTPError) -> None:
        await self.answer(error.status, error_body(error.status, str(error)), error.headers)

    async def cut_off(self, status: int, message: str) -> None:
        """End an answer before its time. One whose head is sent is an event stream, and an error becomes its last event."""
        if not self.status:
            await self.fail(HTTPError(status, message))
        elif not self.complete:
            await self.send_piece(b"data: " + error_body(status, message) + b"\n\n", False)


class Keys:
    """Who may ask."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [one.encode("utf-8", "surrogateescape") for one in keys]

    def allow(self, headers: dict[str, str]) -> bool:
        if not self._keys:
            return True
        given = (headers.get("authorization") or headers.get("x-api-key", "")).removeprefix("Bearer ")
        data = given.encode("utf-8", "surrogateescape")
        # all of them, so that the time tells nothing
        return any([hmac.compare_digest(data, key) for key in self._keys])


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        return False


def _origin(origin: str, settings: Settings) -> list[tuple[str, str]]:
    allowed = settings.cors_origins
    if allowed == "localhost":
        echo = _is_local(origin)
    elif allowed == "*":
        if not settings.cors_credentials:
            return [("access-control-allow-origin", "*")]
        echo = True
    else:
        echo = origin in [one.strip() for one in allowed.split(",")]
    if not origin or not echo:
        return []
    return [("access-control-allow-origin", origin), ("vary", "Origin")]


def preflight(settings: Settings) -> list[tuple[str, str]]:
    return [
        ("access-control-allow-credentials", "true" if settings.cors_credentials else "false"),
        ("access-control-allow-methods", settings.cors_methods),
        ("access-control-allow-headers", settings.cors_headers),
        ("content-type", "text/html"),
    ]
