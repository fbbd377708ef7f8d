"""The life of a native object: opened once, closed once, children first, never used after that. See docs/lifetimes.md."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
import weakref
from types import TracebackType
from typing import Any, ClassVar, Self

from . import lifecycle
from .errors import ClosedError, ForkedError


class Resource:
    """A native object that this Python object owns.

    A child keeps its parent alive and is closed before it. `close()` may be called any number of times, by any thread: it waits
    for a call that is running on the object. An object that is never closed is closed when it is collected, with a ResourceWarning.
    """

    _open: ClassVar[weakref.WeakSet[Resource]] = weakref.WeakSet()
    _open_lock: ClassVar[threading.RLock] = threading.RLock()  # the collector may close something meanwhile
    _internal = False  # made by another object of ours, which closes it: nothing that a user could forget

    def _adopt(self, handle: Any, parent: Resource | None = None) -> None:
        """Own `handle` from now on. Call with the parent's lock held, which keeps the parent open meanwhile."""
        self._parent = parent
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closing = False
        self._children: weakref.WeakSet[Resource] = weakref.WeakSet()
        with self._open_lock:
            if parent is not None:
                parent._children.add(self)
            self._open.add(self)
        self._handle = handle

    @property
    def _adopted(self) -> bool:
        """Whether `_adopt()` was done; it may be closed since, by another thread."""
        return "_handle" in self.__dict__

    @property
    def handle(self) -> Any:
        """The C pointer, for `pyggml.lib`; it is valid until `close()`."""
        handle = self.__dict__.get("_handle")
        if handle is None or self._closing:
            lifecycle.leave()
            raise ClosedError(f"this {type(self).__name__} is closed")
        if os.getpid() != self._pid:
            raise ForkedError(
                f"this {type(self).__name__} belongs to process {self._pid} and cannot be used in its fork; "
                "open it in the child, and start children by 'spawn'"
            )
        return handle

    @property
    def closed(self) -> bool:
        return self.__dict__.get("_handle") is None

    @property
    def holds_devices(self) -> bool:
        """Whether it needs its backends now."""
        return True

    def close(self) -> None:
        """Free the native object and, before it, what was made from it."""
        if self.closed:
            return
        if os.getpid() != self._pid:
            self._handle = None  # in a fork there is nothing to free: the process that made it does
            return
        self._check_close()
        self._closing = True  # whoever calls again and again would keep the lock, and this one waiting
        try:
            with self._lock:
                self._check_close()
                for child in list(self._children):
                    child.close()
                handle, self._handle = self._handle, None
                with self._open_lock:
                    self._open.discard(self)
                if handle is not None:
                    self._free(handle)
        finally:
            self._closing = False

    def _check_close(self) -> None:
        """Raise if the object cannot be closed now."""

    def _free(self, handle: Any) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.handle  # noqa: B018  (a closed object cannot be entered)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # else the user's own exception matters more
                raise

    def __del__(self) -> None:
        if self.closed or sys.is_finalizing() or os.getpid() != self._pid:
            return
        try:
            if not self._internal:
                warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)
        finally:  # a warning may be an error
            self.close()


def open_resources() -> list[Resource]:
    """What is open in this process, parents before their children."""
    with Resource._open_lock:
        found = list(Resource._open)
    return sorted((one for one in found if not one.closed), key=lambda one: one._parent is not None)


@atexit.register
def _close_all() -> None:
    # Backends must not be torn down under living objects, and the interpreter's order at its end is nobody's.
    lifecycle.stop()
    forgotten = [one for one in open_resources() if not one._internal]
    for one in open_resources():
        # a thread may still be in a call on it; it is not waited for longer than an abort takes
        if one._lock.acquire(timeout=2):
            try:
                one.close()
            except Exception:  # a view of its memory is still there: the process ends anyway
                pass
            finally:
                one._lock.release()
    for one in forgotten:
        warnings.warn(f"{one!r} was never closed", ResourceWarning, stacklevel=1, source=one)


def _forked() -> None:
    # A thread of the parent may have held any of these, and it is not here to give them back.
    Resource._open_lock = threading.RLock()
    for one in list(Resource._open):
        one._lock = threading.RLock()
    Resource._open = weakref.WeakSet()  # what is open belongs to the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
