"""How requests go into an engine, and how their events come out of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import iter_unpack
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ._native import check, ffi, lib

_EVENT = "=QiiQ"
assert ffi.sizeof("struct pyggml_event") == 24


@dataclass(frozen=True, slots=True)
class File:
    """A file of a form, for routes that take one."""

    filename: str
    data: bytes
    content_type: str = "application/octet-stream"


class Channel:
    """Where the events of requests wait; `fd` is readable while there are some. Used by one thread at a time."""

    def __init__(self, capacity: int = 512) -> None:
        out = ffi.new("struct pyggml_channel **")
        check(lib.pyggml_channel_new(out), "a channel could not be made")
        self.handle = out[0]
        self.fd = int(lib.pyggml_channel_fd(self.handle))
        self._capacity = capacity
        self._events = ffi.new("struct pyggml_event[]", capacity)
        self._view = ffi.buffer(self._events)
        self._data = ffi.new("char **")
        self._size = ffi.new("size_t *")

    def poll(self) -> Iterator[tuple[int, int, int, bytes]]:
        """What is there: (request, kind, status, payload). Does not wait."""
        n = lib.pyggml_channel_poll(self.handle, self._events, self._capacity, self._data, self._size)
        if n:
            payload = ffi.buffer(self._data[0], self._size[0])[:]
            at = 0
            for request, kind, status, size in iter_unpack(_EVENT, self._view[: n * 24]):
                yield request, kind, status, payload[at : at + size]
                at += size

    def wake(self) -> None:
        """Makes `fd` readable."""
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            lib.pyggml_channel_free(handle)

    def __del__(self) -> None:
        if self.__dict__.get("handle") is not None:
            self.close()


def _pairs(items: Mapping[str, str], keep: list[Any]) -> Any:
    strings = []
    for name, value in items.items():
        for one in (name, value):
            if "\0" in one:
                raise ValueError("a header or parameter cannot contain a null character")
            strings.append(ffi.new("char[]", one.encode("utf-8", "surrogateescape")))
    keep += strings
    keep.append(ffi.new("char *[]", strings))
    return keep[-1]


def submit(
    engine: Any,
    channel: Channel,
    route: str,
    body: Any,
    *,
    method: str | None,
    params: Mapping[str, str] | None,
    headers: Mapping[str, str] | None,
    files: Mapping[str, File] | Sequence[tuple[str, File]] | None,
) -> int:
    """Hand a request to the native engine. Returns its number; the answer comes through the channel."""
    keep: list[Any] = []
    request = ffi.new("struct pyggml_request *")
    if body is None:
        encoded = b""
    elif isinstance(body, bytes | bytearray | memoryview):
        encoded = bytes(body)
    elif isinstance(body, str):
        encoded = body.encode("utf-8", "surrogatepass")
    else:
        encoded = json.dumps(body).encode()
    keep.append(ffi.from_buffer(encoded))
    request.body, request.body_size = keep[-1], len(encoded)
    parts = urlsplit(route)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **(params or {})}
    for name, value in (
        ("method", method or ("GET" if body is None else "POST")),
        ("path", parts.path),
        ("query", parts.query),
    ):
        if "\0" in value:
            raise ValueError(f"the {name} cannot contain a null character")
        keep.append(ffi.new("char[]", value.encode("utf-8", "surrogateescape")))
        setattr(request, name, keep[-1])
    if query:
        request.params, request.n_params = _pairs(query, keep), len(query)
    if headers:
        request.headers, request.n_headers = _pairs(headers, keep), len(headers)
    if files:
        items = list(files.items() if isinstance(files, Mapping) else files)
        native = ffi.new("struct pyggml_file[]", len(items))
        keep.append(native)
        for one, (field, file) in zip(native, items, strict=True):
            for name, value in (
                ("field", field),
                ("filename", file.filename),
                ("content_type", file.content_type),
            ):
                keep.append(ffi.new("char[]", value.encode("utf-8", "surrogateescape")))
                setattr(one, name, keep[-1])
            keep.append(ffi.from_buffer(file.data))
            one.data, one.size = keep[-1], len(file.data)
        request.files, request.n_files = native, len(items)
    number = ffi.new("uint64_t *")
    check(lib.pyggml_engine_request(engine, channel.handle, request, number), "the request could not be taken")
    return int(number[0])


def parse_head(payload: bytes) -> dict[str, str]:
    """Headers of an answer; the names are in lower case."""
    result = {}
    for line in payload.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition(": ")
        result[name.lower()] = value
    return result
