"""Lines that llama.cpp and ggml log reach the logger `pyggml.native`; nothing is printed.

Lines below the logger's level are dropped in C. That level is read when a model is loaded or a context is created, or by
`sync_level()`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._native import ffi, lib

logger = logging.getLogger("pyggml.native")
logging.getLogger("pyggml").addHandler(logging.NullHandler())

_LEVELS = {
    lib.GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
    lib.GGML_LOG_LEVEL_INFO: logging.INFO,
    lib.GGML_LOG_LEVEL_WARN: logging.WARNING,
    lib.GGML_LOG_LEVEL_ERROR: logging.ERROR,
}


_interrupt: BaseException | None = None  # Ctrl+C that came while C was in the logger, which no exception can leave


def _on_error(kind: Any, error: BaseException, trace: Any) -> None:
    global _interrupt
    if isinstance(error, KeyboardInterrupt):
        _interrupt = error
    else:
        sys.excepthook(kind, error, trace)


def raise_interrupt() -> None:
    """Raise what could not be raised in the logger."""
    global _interrupt
    if _interrupt is not None:
        error, _interrupt = _interrupt, None
        raise error


def write(level: int, text: bytes) -> None:
    """Log a line of the native library."""
    logger.log(_LEVELS.get(level, logging.INFO), "%s", text.decode("utf-8", "replace"))


@ffi.def_extern(onerror=_on_error)  # type: ignore[untyped-decorator]
def pyggml_py_log(level: int, text: Any) -> None:
    write(level, ffi.string(text))


def sync_level() -> None:
    """Let C drop what the logger would drop."""
    wanted = logger.getEffectiveLevel()
    levels = [native for native, level in _LEVELS.items() if level >= wanted]
    lib.pyggml_log_set(lib.pyggml_py_log, min(levels, default=lib.GGML_LOG_LEVEL_ERROR + 1))


class _Captured(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def captured() -> Iterator[list[str]]:
    """The warnings and errors that are logged meanwhile."""
    lines: list[str] = []
    handler = _Captured(lines)
    logger.addHandler(handler)
    lib.pyggml_log_set(lib.pyggml_py_log, lib.GGML_LOG_LEVEL_WARN)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        sync_level()
