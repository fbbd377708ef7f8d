"""What keeps backends loaded: the lock that loading and freeing share, and what is being opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._native import lib
from .errors import ForkedError

_pid = os.getpid()

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
    key = object()
    with changed:  # waits for a backend_free() that runs
        openings[key] = (threading.get_ident(), what)
    try:
        yield
    finally:
        with changed:
            del openings[key]
            changed.notify_all()


def device_handles() -> list[Any]:
    """The devices of the loaded backends. Call with `changed` held, which keeps them loaded."""
    return [lib.ggml_backend_dev_get(index) for index in range(lib.ggml_backend_dev_count())]
