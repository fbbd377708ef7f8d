"""What ends a decode that runs: `Context.abort()`, the user's callback, Ctrl+C."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from . import checks, log
from ._native import ffi, lib


class Interrupt:
    """Where C asks, about 50 times a second, whether a decode should end. It must outlive the native context."""

    def __init__(self, callback: Callable[[], bool] | None) -> None:
        checks.function("abort", callback)
        self._callback = callback
        self._error: BaseException | None = None
        self._self = ffi.new_handle(weakref.ref(self))
        self.native = ffi.new("struct pyggml_interrupt *")
        self.native.poll = lib.pyggml_py_interrupt
        self.native.data = self._self

    def request(self, wanted: bool) -> None:
        lib.pyggml_interrupt_request(self.native, wanted)

    def raise_error(self) -> None:
        """Raise what the callback raised, or the Ctrl+C that came meanwhile."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _keep_error(kind: Any, error: BaseException, trace: Any) -> None:
    data = trace.tb_frame.f_locals.get("data") if trace is not None else None
    interrupt = ffi.from_handle(data)() if data else None
    if interrupt is not None:
        interrupt._error = error


# Called by the thread that decodes; merely to run Python here lets the interpreter see a pending Ctrl+C.
@ffi.def_extern(error=True, onerror=_keep_error)  # type: ignore[untyped-decorator]
def pyggml_py_interrupt(data: Any) -> bool:
    log.raise_interrupt()
    interrupt = ffi.from_handle(data)()
    return interrupt is not None and interrupt._callback is not None and bool(interrupt._callback())
