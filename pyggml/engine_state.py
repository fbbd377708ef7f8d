"""What an engine is doing, and how it goes to sleep and comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from . import backend, lifecycle
from ._native import ffi, lib, text
from .errors import BackendInUseError, ForeignContextError


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    WAKING = "waking"
    FAILED = "failed"
    CLOSED = "closed"


class SleepMode(StrEnum):
    """What a sleeping engine lets go of."""

    FREE = "free"  # the model, its context and its caches
    RESET = "reset"  # also the backends: `backend_free()`


STATES = {
    lib.PYGGML_ENGINE_LOADING: EngineState.LOADING,
    lib.PYGGML_ENGINE_READY: EngineState.READY,
    lib.PYGGML_ENGINE_SLEEPING: EngineState.SLEEPING,
    lib.PYGGML_ENGINE_WAKING: EngineState.WAKING,
    lib.PYGGML_ENGINE_FAILED: EngineState.FAILED,
    lib.PYGGML_ENGINE_CLOSED: EngineState.CLOSED,
}
MODES = {SleepMode.FREE: lib.PYGGML_SLEEP_FREE, SleepMode.RESET: lib.PYGGML_SLEEP_RESET}


@dataclass(frozen=True, slots=True)
class SleepReport:
    """What the last sleep came to."""

    mode: SleepMode
    """What was reached: FREE also where RESET was wanted and something was in the way."""
    in_the_way: tuple[str, ...]
    """What else is open in this process, so that the backends could not be freed; or why they could not."""
    release: backend.ReleaseReport | None
    """What freeing the backends did, where that was done."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """A snapshot of an engine; taking it neither wakes it nor delays its sleep."""

    state: EngineState
    n_slots: int
    n_requests: int
    """Accepted and not answered."""
    n_busy: int
    """Those of them that keep it awake."""
    n_workers: int
    n_sleeps: int
    n_wakes: int
    n_wake_failures: int
    load_seconds: float
    sleep_seconds: float
    """What the last falling asleep took; 0 without one."""
    wake_seconds: float
    sleep_reason: str
    """Of the last sleep: "idle" or "request"; empty without one."""
    error: str
    """Why the load or the last wake failed; empty if it did not."""
    no_memory: bool
    """Whether that was for want of memory."""
    last_sleep: SleepReport | None


def read_info(handle: Any, last_sleep: SleepReport | None) -> EngineInfo:
    out = ffi.new("struct pyggml_engine_info *")
    lib.pyggml_engine_get_info(handle, out)
    return EngineInfo(
        state=STATES[out.state],
        n_slots=out.n_slots,
        n_requests=out.n_requests,
        n_busy=out.n_busy,
        n_workers=out.n_workers,
        n_sleeps=out.n_sleeps,
        n_wakes=out.n_wakes,
        n_wake_failures=out.n_wake_failures,
        load_seconds=out.load_seconds,
        sleep_seconds=out.sleep_seconds,
        wake_seconds=out.wake_seconds,
        sleep_reason=text(out.sleep_reason),
        error=text(out.error),
        no_memory=bool(out.no_memory),
        last_sleep=last_sleep,
    )


class Sleeper:
    """The part of an engine that its own thread calls when the model has gone and before it comes back.

    It does not know the engine, so that an engine that nobody holds is collected. While `backend_free()` closes an engine it has
    the lock that is needed here: nothing waits for it once `closing` is set.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.holds_devices = True
        self.closing = False
        self.freed = False
        self._backends_freed = False
        self.report: SleepReport | None = None

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        while not (got := lifecycle.changed.acquire(timeout=0.05)):
            if self.closing:
                break
        try:
            yield got
        finally:
            if got:
                lifecycle.changed.release()

    def asleep(self, wanted: int) -> int:
        release: backend.ReleaseReport | None = None
        in_the_way: tuple[str, ...] = ()
        with self._locked() as locked:
            self.holds_devices = not locked
            if locked and wanted == lib.PYGGML_SLEEP_RESET:
                try:
                    release = backend.backend_free()
                except BackendInUseError as error:
                    in_the_way = error.holders or (str(error),)
                except ForeignContextError as error:
                    in_the_way = (str(error),)
        # one that slept deeper already is not asked to come back for less
        self._backends_freed = release is not None or (self._backends_freed and wanted != lib.PYGGML_SLEEP_RESET)
        mode = SleepMode.RESET if self._backends_freed else SleepMode.FREE
        self.report = SleepReport(mode, in_the_way, release)
        return int(MODES[mode])

    def wakes(self) -> int:
        with self._locked() as locked:
            if not locked or self.closing:
                return 0
            lifecycle.openings[self] = (threading.get_ident(), f"{self.what}, waking")
            self.holds_devices = True
            self._backends_freed = False
            return 1

    def woke(self) -> int:
        with lifecycle.changed:
            lifecycle.openings.pop(self, None)
            lifecycle.changed.notify_all()
        return 0


@ffi.def_extern(error=0)  # type: ignore[untyped-decorator]
def pyggml_py_engine(data: Any, moment: int, mode: int) -> int:
    sleeper: Sleeper = ffi.from_handle(data)
    if moment == lib.PYGGML_ENGINE_ASLEEP:
        return sleeper.asleep(mode)
    if moment == lib.PYGGML_ENGINE_WAKES:
        return sleeper.wakes()
    return sleeper.woke()
