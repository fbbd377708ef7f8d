"""What can go wrong. Every exception derives from `PyggmlError`, and from the built-in one that a caller would expect."""

from __future__ import annotations

from collections.abc import Sequence


class PyggmlError(Exception):
    """The root of all errors of this package."""


class ClosedError(PyggmlError, ValueError):
    """A closed object was used."""


class ForkedError(PyggmlError, RuntimeError):
    """An object was used in a child that fork() made. Threads and devices do not survive a fork: start children by `spawn`."""


class ModelLoadError(PyggmlError):
    """A model or adapter file cannot be loaded; the message names the path and the reason."""


class ModelFileNotFoundError(ModelLoadError, FileNotFoundError):
    """There is no such file."""


class ModelFileIsADirectoryError(ModelLoadError, IsADirectoryError):
    """The path is a directory."""


class ModelFilePermissionError(ModelLoadError, PermissionError):
    """The file may not be read."""


class LoadCancelledError(PyggmlError):
    """The progress callback ended the load."""


class OutOfMemoryError(PyggmlError, MemoryError):
    """A device or the host has no room."""


class ContextFullError(PyggmlError):
    """A batch does not fit into what is left of the context."""


class AbortedError(PyggmlError):
    """A decode was ended by `Context.abort()` or by the abort callback. The context can be used further."""


class BackendInUseError(PyggmlError, RuntimeError):
    """A backend cannot be freed because objects of it are open; `holders` names them."""

    def __init__(self, message: str, holders: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


class ForeignContextError(PyggmlError, RuntimeError):
    """Somebody else in this process uses the device, and a reset would destroy what it holds there."""


class EngineError(PyggmlError):
    """A request to an `Engine` failed; `status` is HTTP's for it, `body` what was answered."""

    def __init__(self, message: str, *, status: int, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body
