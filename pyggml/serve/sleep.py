"""How the server sleeps and wakes on demand, and what its status says of that."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ..engine import Engine
from ..engine_state import EngineState, SleepReport
from ..errors import EngineError
from . import flags
from .http import HTTPError, encode


class Sleep:
    """The sleeping and waking of one engine, seen from the event loop."""

    def __init__(self, engine: Engine, mode: str, idle_seconds: float | None, drain_seconds: float) -> None:
        self._engine = engine
        self._mode, self._idle_seconds, self._drain_seconds = mode, idle_seconds, drain_seconds
        self._waking: asyncio.Task[None] | None = None
        self._falling: asyncio.Task[SleepReport] | None = None

    async def wake(self) -> bytes:
        """One wake for all that ask meanwhile. Raises HTTPError (503)."""
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._engine.aio.wake())
        await self._settled(self._waking)
        return self.state()

    async def sleep(self, body: bytes) -> bytes:
        """Raises HTTPError: 409 if requests still run after the limit."""
        mode, timeout = self._wanted(body)
        if self._falling is not None and not self._falling.done():
            raise HTTPError(409, "It is falling asleep for another request")
        self._falling = asyncio.create_task(self._engine.aio.sleep(mode, timeout=timeout))
        report = await self._settled(self._falling)
        info = self._engine.info()
        return encode({"is_sleeping": info.state is EngineState.SLEEPING, "mode": report.mode,
                       "seconds": info.sleep_seconds, "in_the_way": report.in_the_way})  # fmt: skip

    async def _settled(self, task: asyncio.Task[Any]) -> Any:
        # a client that goes away ends neither; then nobody may be left to take the result
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task])
        try:
            return task.result()
        except EngineError as error:
            raise HTTPError(error.status, str(error)) from None

    def _wanted(self, body: bytes) -> tuple[str, float]:
        try:
            fields = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            raise HTTPError(400, "The body is not valid JSON") from None
        if not isinstance(fields, dict):
            raise HTTPError(400, "The body is to be a JSON object")
        if unknown := fields.keys() - {"mode", "timeout"}:
            raise HTTPError(400, f"Only mode and timeout are known here, not {', '.join(sorted(unknown))[:100]}")
        mode, timeout = fields.get("mode", self._mode), fields.get("timeout", self._drain_seconds)
        if not isinstance(mode, str):
            raise HTTPError(400, "mode is to be a string")
        try:
            mode = flags.sleep_mode(mode[:100])
        except flags.UsageError as error:
            raise HTTPError(501 if mode in ("restart", "rst") else 400, str(error)) from None
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 1e9:
            raise HTTPError(400, "timeout is to be a number of seconds")
        return mode, float(timeout)

    # -- status, which wakes nothing -------------------------------------------------------------------------------------

    def state(self) -> bytes:
        state = self._engine.info().state
        return encode({"is_sleeping": state is EngineState.SLEEPING, "state": state})

    def props(self, body: bytes) -> bytes:
        """The engine's, and how it sleeps."""
        info = self._engine.info()
        report = info.last_sleep
        fields = json.loads(body)
        fields["sleep"] = {
            "mode": self._mode,
            "idle_seconds": self._idle_seconds,
            "n_sleeps": info.n_sleeps,
            "n_wakes": info.n_wakes,
            "n_wake_failures": info.n_wake_failures,
            "last": report
            and {
                "mode": report.mode,
                "reason": info.sleep_reason,
                "sleep_seconds": info.sleep_seconds,
                "wake_seconds": info.wake_seconds,
                "in_the_way": report.in_the_way,
            },
        }
        return encode(fields)

    def metrics(self) -> bytes:
        """Prometheus' lines beside the engine's."""
        info = self._engine.info()
        mode = info.last_sleep.mode if info.last_sleep else self._mode
        label = f'{{mode="{mode}"}}'
        rows: list[tuple[str, str, str, str, float]] = [
            ("sleeping", "gauge", "1 while the model is not loaded.", "", info.state is EngineState.SLEEPING),
            ("sleeps_total", "counter", "How often it fell asleep.", "", info.n_sleeps),
            ("wakes_total", "counter", "How often it woke.", "", info.n_wakes),
            ("wake_failures_total", "counter", "How often waking failed.", "", info.n_wake_failures),
            ("load_seconds", "gauge", "What the first load took.", "", info.load_seconds),
        ]
        if info.n_sleeps:
            rows.append(("last_sleep_seconds", "gauge", "What falling asleep took, last.", label, info.sleep_seconds))
        if info.n_wakes:
            rows.append(("last_wake_seconds", "gauge", "What waking took, last.", "", info.wake_seconds))
        return "".join(
            f"# HELP pyggml:{name} {text}\n# TYPE pyggml:{name} {kind}\npyggml:{name}{labels} {float(value):.12g}\n"
            for name, kind, text, labels, value in rows
        ).encode()
