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

from .errors import ClosedError, ForkedError


class Resource:
    """A native object that this Python object owns.

    A child keeps its parent alive and is closed before it. `close()` may be called any number of times, by any thread: it waits
    for a call that is running on the object. An object that is never closed is closed when it is collected, with a ResourceWarning.
    """

    _open: ClassVar[weakref.WeakSet[Resource]] = weakref.WeakSet()
    _open_lock: ClassVar[threading.RLock] = threading.RLock()  # the collector may close something meanwhile

    def __init__(self, handle: Any, parent: Resource | None = None) -> None:
        self._handle = handle
        self._parent = parent
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._children: weakref.WeakSet[Resource] = weakref.WeakSet()
        with self._open_lock:
            if parent is not None:
                parent._children.add(self)
            self._open.add(self)

    @property
    def handle(self) -> Any:
        """The C pointer, for `pyggml.lib`; it is valid until `close()`."""
        handle = self.__dict__.get("_handle")
        if handle is None:
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

    def close(self) -> None:
        """Free the native object and, before it, what was made from it."""
        if self.closed or os.getpid() != self._pid:
            self._handle = None  # in a fork there is nothing to free: the process that made it does
            return
        with self._lock:
            self._check_close()
            for child in list(self._children):
                child.close()
            handle, self._handle = self._handle, None
            with self._open_lock:
                self._open.discard(self)
            if handle is not None:
                self._free(handle)

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
        warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)
        try:
            self.close()
        except Exception as error:
            warnings.warn(f"{self!r} could not be closed: {error}", ResourceWarning, stacklevel=2)


def open_resources() -> list[Resource]:
    """What is open in this process, parents before their children."""
    with Resource._open_lock:
        found = list(Resource._open)
    return sorted((one for one in found if not one.closed), key=lambda one: one._parent is not None)


@atexit.register
def _close_all() -> None:
    # Backends must not be torn down under living objects, and the interpreter's order at its end is nobody's.
    for one in open_resources():
        if one.closed or one._pid != os.getpid():
            continue
        if one._parent is None:
            warnings.warn(f"{one!r} was never closed", ResourceWarning, stacklevel=1, source=one)
        abort = getattr(one, "abort", None)
        if abort is not None:
            abort()
    for one in open_resources():
        # a thread may still be in a call on it; it is not waited for longer than an abort takes
        if one._pid == os.getpid() and one._lock.acquire(timeout=2):
            try:
                one.close()
            except Exception:  # a view of its memory is still there: the process ends anyway
                pass
            finally:
                one._lock.release()
