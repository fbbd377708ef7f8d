"""An engine for asyncio: the event loop reads the engine's events itself, no thread is between them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from . import engine_calls, errors
from ._native import lib
from .engine_calls import Call, Message
from .engine_channel import Channel, File, parse_head, submit
from .engine_response import ENDED
from .engine_state import EngineInfo, EngineState, SleepReport

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .engine import Engine

# Bytes of an answer that may wait for a slow reader here; then they wait in the engine, which stops when that is full, too.
HIGH_WATER = 256 << 10

_HEAD, _DATA, _END = lib.PYGGML_EVENT_HEAD, lib.PYGGML_EVENT_DATA, lib.PYGGML_EVENT_END


class AsyncResponse:
    """The answer to a request, for one task: its head is there, its body comes by `async for` or `read()`.

    One that is not read to its end is to be closed, or used in an `async with` statement: closing it ends the computation.
    """

    __slots__ = ("__weakref__", "_buffered", "_chunks", "_end_status", "_ended", "_id", "_loop", "_paused", "_waiter",
                 "headers", "status")  # fmt: skip

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._id = 0
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._ended = False
        self._end_status = 0
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        """HTTP's status; 499 if the request was cancelled and 503 if the engine was closed before there was an answer."""
        self.headers: dict[str, str] = {}
        """Names are in lower case."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    def _feed(self, kind: int, status: int, payload: bytes) -> None:
        if kind == _DATA:
            self._chunks.append(payload)
            self._buffered += len(payload)
            if self._buffered > HIGH_WATER and not self._paused:
                self._paused = True
                self._loop.pause(self._id, True)
        elif kind == _HEAD:
            self.status, self.headers = status, parse_head(payload)
        else:
            self._ended, self._end_status = True, status
            self.status = self.status or status
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.loop.create_future()
        await self._waiter

    async def _wait_for_head(self) -> None:
        while not self.status and not self._ended:
            await self._wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece of the body: all that has come. Raises EngineError if it ends before its time."""
        while not self._chunks:
            if self._ended:
                if self._end_status:
                    raise errors.EngineError(ENDED[self._end_status], status=self._end_status)
                raise StopAsyncIteration
            await self._wait()
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            self._loop.pause(self._id, False)
        return data

    async def read(self) -> bytes:
        """All of the body that is not read yet."""
        return b"".join([data async for data in self])

    def close(self) -> None:
        """End the request if it still runs."""
        if not self._ended:
            self._ended, self._end_status = True, 499
            self._loop.forget(self._id)
            self._loop.pause(self._id, False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self.close()


class _Loop:
    """The channel of one event loop, and the requests that answer through it."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._engine = weakref.ref(engine)
        self.channel = Channel()
        # weak: a response that nobody holds is closed
        self.responses: weakref.WeakValueDictionary[int, AsyncResponse] = weakref.WeakValueDictionary()
        loop.add_reader(self.channel.fd, self._drain)

    def _drain(self) -> None:
        responses = self.responses
        for number, kind, status, payload in self.channel.poll():
            response = responses.get(number)
            if response is not None:
                response._feed(kind, status, payload)

    def pause(self, number: int, paused: bool) -> None:
        if self.channel.handle is not None:
            lib.pyggml_channel_pause(self.channel.handle, number, paused)

    def forget(self, number: int) -> None:
        self.responses.pop(number, None)
        engine = self._engine()
        if engine is not None:
            engine._cancel(number)

    def close(self) -> None:
        if self.loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # it may be closed meanwhile
            self.loop.call_soon_threadsafe(self._last)

    def _last(self) -> None:
        self._drain()  # that the engine was closed
        self.loop.remove_reader(self.channel.fd)
        self.channel.close()


class AsyncEngine:
    """What `Engine.aio` is: the methods of `Engine` for asyncio. Any number of event loops may use it at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        engine = self._engine()
        if engine is None:
            raise errors.ClosedError("this Engine is closed")
        return engine

    def _close(self) -> None:
        with self._lock:
            for one in self._loops.values():
                one.close()
            self._loops.clear()

    def _of(self, engine: Engine) -> _Loop:
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            with self._lock:
                for one in [one for one in self._loops if one.is_closed()]:
                    self._loops.pop(one).channel.close()
                found = self._loops[loop] = _Loop(engine, loop)
        return found

    async def request(
        self,
        route: str,
        body: Any = None,
        *,
        method: str | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        files: Mapping[str, File] | None = None,
    ) -> AsyncResponse:
        """As `Engine.request()`."""
        engine = self.engine
        with engine._using() as handle:
            loop = self._of(engine)
            response = AsyncResponse(loop)
            response._id = submit(
                handle, loop.channel, route, body, method=method, params=params, headers=headers, files=files
            )
            loop.responses[response._id] = response
        try:
            await response._wait_for_head()
        except BaseException:
            response.close()
            raise
        return response

    async def _call(self, call: Call) -> Any:
        async with await self.request(call.route, call.body, method=call.method) as response:
            return call.result(engine_calls.check_status(response.status, await response.read()))

    async def _stream(self, call: Call) -> AsyncIterator[dict[str, Any]]:
        async with await self.request(call.route, call.body) as response:
            if response.status != 200:
                raise engine_calls.error_of(response.status, await response.read())
            events = engine_calls.EventStream()
            async for data in response:
                for chunk in events.feed(data):
                    yield chunk

    @overload
    async def chat(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...
    @overload
    async def chat(
        self, messages: Sequence[Message], *, stream: Literal[True], **fields: Any
    ) -> AsyncIterator[dict[str, Any]]: ...
    async def chat(self, messages: Sequence[Message], *, stream: bool = False, **fields: Any) -> Any:
        """As `Engine.chat()`; with `stream` awaiting it gives an asynchronous iterator (close it with `contextlib.aclosing`)."""
        call = engine_calls.chat(messages, stream, fields)
        return self._stream(call) if stream else await self._call(call)

    @overload
    async def complete(
        self, prompt: str | Sequence[Any], *, stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...
    @overload
    async def complete(
        self, prompt: str | Sequence[Any], *, stream: Literal[True], **fields: Any
    ) -> AsyncIterator[dict[str, Any]]: ...
    async def complete(self, prompt: str | Sequence[Any], *, stream: bool = False, **fields: Any) -> Any:
        """As `Engine.complete()`."""
        call = engine_calls.complete(prompt, stream, fields)
        return self._stream(call) if stream else await self._call(call)

    async def embed(self, texts: str | Sequence[str], **fields: Any) -> NDArray[np.float32]:
        """As `Engine.embed()`."""
        result: NDArray[np.float32] = await self._call(engine_calls.embed(texts, fields))
        return result

    async def rerank(self, query: str, documents: Sequence[str], **fields: Any) -> list[dict[str, Any]]:
        """As `Engine.rerank()`."""
        result: list[dict[str, Any]] = await self._call(engine_calls.rerank(query, documents, fields))
        return result

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        result: list[int] = await self._call(engine_calls.tokenize(text, add_special, parse_special))
        return result

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return str(await self._call(engine_calls.detokenize(tokens)))

    async def apply_template(self, messages: Sequence[Message], **fields: Any) -> str:
        return str(await self._call(engine_calls.apply_template(messages, fields)))

    async def slots(self) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = await self._call(engine_calls.SLOTS)
        return result

    async def props(self) -> dict[str, Any]:
        result: dict[str, Any] = await self._call(engine_calls.PROPS)
        return result

    async def metrics(self) -> str:
        return str(await self._call(engine_calls.METRICS))

    async def sleep(self, mode: str | None = None, *, timeout: float = 30.0) -> SleepReport:
        """As `Engine.sleep()`; the event loop runs on meanwhile."""
        return await asyncio.to_thread(self.engine.sleep, mode, timeout=timeout)

    async def wake(self) -> None:
        await asyncio.to_thread(self.engine.wake)

    async def wait_loaded(self) -> None:
        await asyncio.to_thread(self.engine.wait_loaded)

    def info(self) -> EngineInfo:
        """As `Engine.info()`, which does not wait."""
        return self.engine.info()

    @property
    def state(self) -> EngineState:
        return self.engine.state
