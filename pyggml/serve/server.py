"""Sockets, signals and the run of the server: from listening to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence

import uvicorn

from ..engine import Engine
from ..engine_state import EngineState
from .app import App
from .flags import Settings, UsageError

logger = logging.getLogger("pyggml.serve")

BACKLOG = 2048
KEEP_ALIVE = 5  # seconds that an idle connection is kept, as in llama-server


def is_unix(host: str) -> bool:
    return host.endswith(".sock")


def listen(settings: Settings) -> list[socket.socket]:
    """Open the sockets; clients that come before the first answer wait. Raises UsageError, OSError."""
    addresses = [host for host in settings.hosts if not is_unix(host)]
    if settings.port == 0 and len(addresses) > 1:
        raise UsageError("--port 0 goes with one address only")
    opened: list[socket.socket] = []
    try:
        for host in settings.hosts:
            try:
                opened.append(_unix(host) if is_unix(host) else _tcp(host, settings, alone=len(addresses) == 1))
            except OSError as error:
                where = host if is_unix(host) else f"{host}:{settings.port}"
                raise OSError(f"cannot listen on {where}: {error.strerror or error}") from None
    except BaseException:
        close(opened, unix_paths(opened))
        raise
    return opened


def _tcp(host: str, settings: Settings, *, alone: bool) -> socket.socket:
    found = socket.getaddrinfo(host.strip("[]"), settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    one = socket.socket(family, kind, protocol)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # among several addresses :: must not take 0.0.0.0 as well
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not alone)
        one.bind(address)
        one.listen(BACKLOG)
    except BaseException:
        one.close()
        raise
    return one


def _unix(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX) as other:
                try:
                    other.connect(path)
                except ConnectionRefusedError:
                    os.unlink(path)  # of a server that was killed
    one = socket.socket(socket.AF_UNIX)
    try:
        one.bind(path)
        one.listen(BACKLOG)
    except BaseException:
        one.close()
        raise
    return one


def unix_paths(sockets: Sequence[socket.socket]) -> list[str]:
    return [one.getsockname() for one in sockets if one.family == socket.AF_UNIX]


def close(sockets: Sequence[socket.socket], paths: Sequence[str] = ()) -> None:
    """Close what `listen()` opened, as far as it is open, and remove the files `unix_paths()` of it."""
    for one in sockets:
        one.close()
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def url(one: socket.socket) -> str:
    name = one.getsockname()
    if one.family == socket.AF_UNIX:
        return f"unix://{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # signals are ours: its own handlers end the process by the signal, and a second SIGTERM does not end the wait
        yield


class Server:
    """One run: listening, answering, and going away in order."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uvicorn: _Uvicorn | None = None
        self._signals = 0
        self._paths: list[str] = []
        self.failure = ""
        """Why the model could not be loaded, or computes no more."""

    def on_state(self, state: EngineState, detail: str) -> None:
        """For `Engine(on_state=...)`; comes from another thread."""
        if state is EngineState.READY:
            logger.info("the model is loaded")
        elif state is EngineState.SLEEPING:
            logger.info("asleep" + (f": {detail}" if detail else ""))
        elif state is EngineState.FAILED and not self._signals:  # else its load was ended, which is no failure
            self.failure = detail or "the model failed"
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                    self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            logger.info("%s: no more requests are taken", signal.Signals(number).name)
            self._stop()
            return
        logger.warning("%s again: the process ends at once", signal.Signals(number).name)
        close((), self._paths)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + number)  # whatever the engine is doing

    async def run(self, engine: Engine, sockets: Sequence[socket.socket]) -> None:
        """Until a signal comes or the engine fails, and until what ran then has ended or its time is over."""
        self._paths = unix_paths(sockets)
        config = uvicorn.Config(
            App(engine, self._settings), lifespan="off", ws="none", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(self._settings.drain_seconds)),
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._uvicorn = _Uvicorn(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        for one in sockets:  # the first line that a supervisor sees: from here on signals are ours
            print(f"pyggml-serve: listening on {url(one)}{self._settings.api_prefix}", flush=True)
        if self.failure:  # it failed before there was a loop
            self._stop()
        await self._uvicorn.serve(sockets=list(sockets))
