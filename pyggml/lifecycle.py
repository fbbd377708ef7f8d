"""What keeps backends loaded: the lock that loading and freeing share, and what is being opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import log
from ._native import lib
from .errors import ForkedError

_pid = os.getpid()
_stopped = False

changed = threading.Condition(threading.RLock())
"""Held while the list of backends is read or changed; notified when an opening has ended."""

openings: dict[object, tuple[int, str]] = {}
"""What is being opened, each with its thread and its description. Guarded by `changed`."""


def check_process() -> None:
    """Devices and the threads of backends do not survive a fork."""
    if os.getpid() != _pid:
        raise ForkedError(
            f"pyggml was imported in process {_pid} and cannot be used in its fork; start children by 'spawn'"
        )


@contextmanager
def opening(what: str) -> Iterator[None]:
    """While something is opened its backends are in use, although no object of it is there yet."""
    check_process()
    leave()
    key = object()
    with changed:  # waits for a backend_free() that runs
        openings[key] = (threading.get_ident(), what)
    try:
        yield
    finally:
        with changed:
            del openings[key]
            changed.notify_all()
    log.raise_interrupt()


def stop() -> None:
    """The interpreter is at its end: end the loads and decodes of other threads, none of which calls Python any more."""
    global _stopped
    if os.getpid() != _pid:
        return
    _stopped = True
    lib.pyggml_stop()
    with changed:
        changed.wait_for(lambda: not openings, timeout=2)


def leave() -> None:
    """After `stop()`: end a thread that finds its objects closed, in silence, as the interpreter ends such threads itself."""
    if _stopped and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def device_handles() -> list[Any]:
    """The devices of the loaded backends. Call with `changed` held, which keeps them loaded."""
    return [lib.ggml_backend_dev_get(index) for index in range(lib.ggml_backend_dev_count())]
