"""llama.cpp's serving core in this process: many requests at once, batched, in slots of one context. See docs/engine.md."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

from . import checks, engine_args, engine_calls, errors, log
from ._native import ffi, lib, reason, text
from .engine_calls import Call, Message
from .engine_channel import Channel, File, submit
from .engine_response import Response
from .engine_state import MODES, STATES, EngineInfo, EngineState, Sleeper, SleepMode, SleepReport, read_info
from .lifecycle import opening
from .resource import Resource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .engine_aio import AsyncEngine

MAX_UNDELIVERED = 1 << 20


def routes() -> list[tuple[str, str]]:
    """(method, path) of everything that an engine answers; a part ":name" of a path varies."""
    lines = text(lib.pyggml_engine_routes()).splitlines()
    return [(method, path) for method, _, path in (line.partition(" ") for line in lines)]


class Engine(Resource):
    """A model that is served: requests of any number of threads and event loops are computed together.

    `path` is a GGUF file. `parallel` is the number of slots (llama-server's default where None), among which `ctx_size` tokens of
    context are shared; `embeddings`, `pooling` and `reranking` are for models that embed; `mmproj` is the projector of a multimodal
    model, `draft` a model for speculative decoding, `lora` adapters or (adapter, scale). `args` are further flags of
    llama-server, word by word; with `env` also the variables LLAMA_ARG_* and llama.cpp's configuration files count.

    With `sleep_idle_seconds` it falls asleep after so many seconds without a request, and wakes at the next one; `sleep_mode` says
    what it lets go of then, see `SleepMode`. `on_state` is called with the state and, while it loads, details of the progress (or why
    it failed) by a thread of the engine.

    The constructor returns when the model is loaded; with `wait=False` it returns at once, and requests are answered by 503 until then.
    Raises ModelLoadError, ValueError for flags that are not valid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        parallel: int | None = None,
        ctx_size: int | None = None,
        n_gpu_layers: int | None = None,
        embeddings: bool = False,
        pooling: str | None = None,
        reranking: bool = False,
        mmproj: str | os.PathLike[str] | None = None,
        lora: Sequence[engine_args.Path | tuple[engine_args.Path, float]] = (),
        draft: str | os.PathLike[str] | None = None,
        sleep_idle_seconds: float | None = None,
        sleep_mode: str = SleepMode.RESET,
        args: Sequence[str] = (),
        env: bool = False,
        metrics: bool = True,
        wait: bool = True,
        on_state: Callable[[EngineState, str], None] | None = None,
    ) -> None:
        words = engine_args.arguments(
            path, parallel=parallel, ctx_size=ctx_size, n_gpu_layers=n_gpu_layers, embeddings=embeddings, pooling=pooling,
            reranking=reranking, mmproj=mmproj, lora=lora, draft=draft, metrics=metrics, args=args,
        )  # fmt: skip
        options = ffi.new("struct pyggml_engine_options *")
        options.sleep_idle_seconds = -1.0
        if sleep_idle_seconds is not None:
            options.sleep_idle_seconds = checks.number("sleep_idle_seconds", sleep_idle_seconds, 0)
        options.sleep_mode = MODES[SleepMode(checks.word("sleep_mode", sleep_mode, SleepMode))]
        options.env = checks.flag("env", env)
        checks.function("on_state", on_state)
        self.path = os.path.abspath(os.fspath(path))
        self._uses = 0
        self._unused = threading.Condition(threading.Lock())
        log.sync_level()
        self._sleeper = Sleeper(repr(self))
        self._data = ffi.new_handle(self._sleeper)
        self._events = Channel()
        strings = [ffi.new("char[]", os.fsencode(one)) for one in words]
        array = ffi.new("char *[]", strings)
        options.args, options.n_args = array, len(strings)
        options.max_undelivered = MAX_UNDELIVERED
        options.events = self._events.handle
        options.callback, options.data = lib.pyggml_py_engine, self._data
        out = ffi.new("struct pyggml_engine **")
        try:
            with opening(f"{self!r}, loading"):
                if lib.pyggml_engine_new(options, out):
                    raise ValueError(reason())
                self._reader = threading.Thread(
                    target=_read_events, args=(self._events, self._sleeper, on_state), name="pyggml-events", daemon=True
                )
                self._adopt(out[0])
                self._reader.start()
            if wait:
                self.wait_loaded()
        except BaseException:
            if self._adopted:
                self.close()
            elif out[0]:  # Ctrl+C may come at any line
                lib.pyggml_engine_free(out[0])
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__.get('path')!r})"

    # -- its life --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _using(self) -> Iterator[Any]:
        """The native engine, which is not freed meanwhile."""
        with self._unused:
            handle = self.handle
            self._uses += 1
        try:
            yield handle
        finally:
            with self._unused:
                self._uses -= 1
                self._unused.notify_all()

    def _free(self, handle: Any) -> None:
        self._sleeper.closing = True
        lib.pyggml_engine_stop(handle)
        with self._unused:
            while self._uses:
                self._unused.wait()
        lib.pyggml_engine_free(handle)
        self._sleeper.freed = True
        self._events.wake()
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join()
            self._events.close()
        if "aio" in self.__dict__:
            self.aio._close()

    @property
    def holds_devices(self) -> bool:
        """Whether it is in the way of `backend_free()`; a sleeping engine is not."""
        return self._sleeper.holds_devices

    def wait_loaded(self, timeout: float | None = None) -> bool:
        """Wait until the model is loaded. False: it is not after `timeout` seconds. Raises ModelLoadError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._using() as handle:
                # in slices, so that Ctrl+C ends it
                state = STATES[lib.pyggml_engine_wait(handle, 50)]
            if state is EngineState.FAILED:
                info = self.info()
                kind = errors.OutOfMemoryError if info.no_memory else errors.ModelLoadError
                raise kind(f"{self.path}: {info.error}")
            if state is not EngineState.LOADING:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def info(self) -> EngineInfo:
        """State, counts and durations. Never wakes it."""
        with self._using() as handle:
            return read_info(handle, self._sleeper.report)

    @property
    def state(self) -> EngineState:
        return EngineState.CLOSED if self.closed else self.info().state

    @property
    def is_sleeping(self) -> bool:
        return self.state is EngineState.SLEEPING

    def sleep(self, mode: str | None = None, *, timeout: float = 30.0) -> SleepReport:
        """Let go of the model until the next request, or until `wake()`.

        Running requests end first, new ones wait; if some still run after `timeout` seconds EngineError (409) is raised and it
        stays awake. `mode` is that of the engine where None. One that sleeps already can be sent to a deeper sleep.
        """
        wanted = -1 if mode is None else MODES[SleepMode(checks.word("mode", mode, SleepMode))]
        seconds = checks.number("timeout", timeout, 0)
        if self.state is EngineState.LOADING:
            raise errors.EngineError("the model is still being loaded", status=409)
        with self._using() as handle:
            result = lib.pyggml_engine_sleep(handle, wanted, seconds)
        if result == lib.PYGGML_ENGINE_BUSY:
            raise errors.EngineError(f"requests were still running after {timeout:g} s", status=409)
        self._check_result(result)
        assert self._sleeper.report is not None
        return self._sleeper.report

    def wake(self) -> None:
        """Load the model again, if it sleeps. Raises EngineError (503) if that fails; it sleeps on then."""
        self.wait_loaded()
        with self._using() as handle:
            result = lib.pyggml_engine_wake(handle)
            why = reason() if result == lib.PYGGML_ENGINE_NOT_LOADED else ""
        self._check_result(result, why)

    def _check_result(self, result: int, why: str = "") -> None:
        if result == lib.PYGGML_ENGINE_GONE:
            raise errors.EngineError("the engine was closed, or it failed", status=503)
        if result:
            raise errors.EngineError(f"the model could not be loaded again: {why}", status=503)

    def set_sleep_idle_seconds(self, seconds: float | None) -> None:
        """Change after how many seconds without a request it falls asleep; None: never."""
        value = -1.0 if seconds is None else checks.number("seconds", seconds, 0)
        with self._using() as handle:
            lib.pyggml_engine_set_idle(handle, value)

    # -- requests --------------------------------------------------------------------------------------------------------

    def request(
        self,
        route: str,
        body: Any = None,
        *,
        method: str | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        files: Mapping[str, File] | None = None,
    ) -> Response:
        """Any request of llama-server's interface, see `routes()`; returns when the head of the answer is there.

        `body` is bytes or text, or anything else that becomes JSON; `method` is GET without a body and POST with one; a query may
        be in the route or in `params`. An answer that says an error is returned as any other.
        """
        response = Response(self._cancel, Channel(16))
        with self._using() as handle:
            response._id = submit(
                handle, response._channel, route, body, method=method, params=params, headers=headers, files=files
            )
        try:
            response._wait_for_head()
        except BaseException:
            response.close()
            raise
        return response

    def _cancel(self, number: int) -> None:
        try:
            with self._using() as handle:
                lib.pyggml_engine_cancel(handle, number)
        except (errors.ClosedError, errors.ForkedError):
            pass

    def _call(self, call: Call) -> Any:
        with self.request(call.route, call.body, method=call.method) as response:
            return call.result(engine_calls.check_status(response.status, response.read()))

    def _stream(self, call: Call) -> Iterator[dict[str, Any]]:
        with self.request(call.route, call.body) as response:
            if response.status != 200:
                raise engine_calls.error_of(response.status, response.read())
            events = engine_calls.EventStream()
            for data in response:
                yield from events.feed(data)

    @overload
    def chat(self, messages: Sequence[Message], *, stream: Literal[False] = False, **fields: Any) -> dict[str, Any]: ...
    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[True], **fields: Any
    ) -> Iterator[dict[str, Any]]: ...
    def chat(self, messages: Sequence[Message], *, stream: bool = False, **fields: Any) -> Any:
        """A chat completion in OpenAI's form; with `stream` its chunks. `fields` are the request's further fields.

        A stream that is not read to its end is to be closed (`contextlib.closing`), or collected. Raises EngineError, also the
        other calls.
        """
        call = engine_calls.chat(messages, stream, fields)
        return self._stream(call) if stream else self._call(call)

    @overload
    def complete(
        self, prompt: str | Sequence[Any], *, stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...
    @overload
    def complete(
        self, prompt: str | Sequence[Any], *, stream: Literal[True], **fields: Any
    ) -> Iterator[dict[str, Any]]: ...
    def complete(self, prompt: str | Sequence[Any], *, stream: bool = False, **fields: Any) -> Any:
        """A completion in OpenAI's form (`/v1/completions`); `prompt` is text, tokens, or a list of such."""
        call = engine_calls.complete(prompt, stream, fields)
        return self._stream(call) if stream else self._call(call)

    def embed(self, texts: str | Sequence[str], **fields: Any) -> NDArray[np.float32]:
        """Embeddings, shape (n_embd,) for a text and (texts, n_embd) for several. Needs `embeddings=True`."""
        result: NDArray[np.float32] = self._call(engine_calls.embed(texts, fields))
        return result

    def rerank(self, query: str, documents: Sequence[str], **fields: Any) -> list[dict[str, Any]]:
        """For each document its "index" and its "relevance_score", best first. Needs `reranking=True`."""
        result: list[dict[str, Any]] = self._call(engine_calls.rerank(query, documents, fields))
        return result

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        result: list[int] = self._call(engine_calls.tokenize(text, add_special, parse_special))
        return result

    def detokenize(self, tokens: Sequence[int]) -> str:
        return str(self._call(engine_calls.detokenize(tokens)))

    def apply_template(self, messages: Sequence[Message], **fields: Any) -> str:
        """The prompt for a conversation."""
        return str(self._call(engine_calls.apply_template(messages, fields)))

    def slots(self) -> list[dict[str, Any]]:
        """What each slot does. This, `props()` and `metrics()` neither wake it nor delay its sleep."""
        result: list[dict[str, Any]] = self._call(engine_calls.SLOTS)
        return result

    def props(self) -> dict[str, Any]:
        """What it serves, and its defaults."""
        result: dict[str, Any] = self._call(engine_calls.PROPS)
        return result

    def metrics(self) -> str:
        """Counters and gauges in Prometheus' text format. Needs `metrics=True`."""
        return str(self._call(engine_calls.METRICS))

    @cached_property
    def aio(self) -> AsyncEngine:
        """The same for asyncio."""
        from .engine_aio import AsyncEngine

        return AsyncEngine(self)


def _read_events(channel: Channel, sleeper: Sleeper, on_state: Callable[[EngineState, str], None] | None) -> None:
    """Log lines and states, until the engine is closed."""
    poll = select.poll()
    poll.register(channel.fd, select.POLLIN)
    while True:
        poll.poll()
        for _, kind, status, payload in channel.poll():
            if kind == lib.PYGGML_EVENT_LOG:
                log.write(status, payload)
            elif kind == lib.PYGGML_EVENT_STATE and on_state is not None:
                try:
                    on_state(STATES[status], payload.decode("utf-8", "replace"))
                except Exception:
                    log.logger.exception("on_state of %s failed", sleeper.what)
        if sleeper.freed:
            return
