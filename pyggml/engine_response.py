"""The answer to a request of an engine, for a thread that waits for it."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import Self

from . import errors
from ._native import lib
from .engine_channel import Channel, parse_head

ENDED = {499: "the request was cancelled", 503: "the engine was closed"}
"""Why an answer ended before its time."""


class Response:
    """The answer to a request: its head is there, its body comes by iterating over it or by `read()`.

    One that is not read to its end is to be closed, or used in a `with` statement: closing it ends the computation.
    """

    def __init__(self, cancel: Callable[[int], None], channel: Channel) -> None:
        self._cancel = cancel
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel.fd, select.POLLIN)
        self._id = 0
        self._chunks: list[bytes] = []
        self._ended = False
        self._end_status = 0
        self.status = 0
        """HTTP's status; 499 if the request was cancelled and 503 if the engine was closed before there was an answer."""
        self.headers: dict[str, str] = {}
        """Names are in lower case."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    def _wait(self) -> None:
        self._poll.poll()
        for _, kind, status, payload in self._channel.poll():
            if kind == lib.PYGGML_EVENT_HEAD:
                self.status, self.headers = status, parse_head(payload)
            elif kind == lib.PYGGML_EVENT_DATA:
                self._chunks.append(payload)
            elif kind == lib.PYGGML_EVENT_END:
                self._ended, self._end_status = True, status
                self.status = self.status or status
        if self._ended:
            self._channel.close()

    def _wait_for_head(self) -> None:
        while not self.status and not self._ended:
            self._wait()

    def __iter__(self) -> Iterator[bytes]:
        """The body in the pieces in which it comes. Raises EngineError if it ends before its time."""
        try:
            while True:
                chunks, self._chunks = self._chunks, []
                yield from chunks
                if self._ended and not self._chunks:
                    break
                if not self._chunks:
                    self._wait()
        finally:
            self.close()
        if self._end_status:
            raise errors.EngineError(ENDED[self._end_status], status=self._end_status)

    def read(self) -> bytes:
        """All of the body that is not read yet."""
        return b"".join(self)

    def close(self) -> None:
        """End the request if it still runs."""
        if not self._ended:
            self._ended = True
            self._cancel(self._id)
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.__dict__.get("_ended") is False:
            self.close()
