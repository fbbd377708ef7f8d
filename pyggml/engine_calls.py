"""The calls that `Engine` and its asynchronous twin share: what is sent, and what is made of the answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A request and what to make of its answer's body."""

    route: str
    body: Any
    result: Callable[[bytes], Any]
    method: str | None = None


def chat(messages: Sequence[Message], stream: bool, fields: Mapping[str, Any]) -> Call:
    body = {"messages": list(messages), "stream": stream, **fields}
    return Call("/v1/chat/completions", body, json.loads)


def complete(prompt: str | Sequence[Any], stream: bool, fields: Mapping[str, Any]) -> Call:
    body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), "stream": stream, **fields}
    return Call("/v1/completions", body, json.loads)


def embed(texts: str | Sequence[str], fields: Mapping[str, Any]) -> Call:
    single = isinstance(texts, str)

    def result(data: bytes) -> NDArray[np.float32]:
        import numpy as np

        items = sorted(json.loads(data)["data"], key=lambda one: int(one["index"]))
        rows = [np.frombuffer(base64.b64decode(one["embedding"]), np.float32) for one in items]
        return rows[0].copy() if single else np.stack(rows)

    body = {"input": texts if single else list(texts), "encoding_format": "base64", **fields}
    return Call("/v1/embeddings", body, result)


def rerank(query: str, documents: Sequence[str], fields: Mapping[str, Any]) -> Call:
    body = {"query": query, "documents": list(documents), **fields}
    return Call("/v1/rerank", body, lambda data: json.loads(data)["results"])


def tokenize(text: str, add_special: bool, parse_special: bool) -> Call:
    body = {"content": text, "add_special": add_special, "parse_special": parse_special}
    return Call("/tokenize", body, lambda data: json.loads(data)["tokens"])


def detokenize(tokens: Sequence[int]) -> Call:
    return Call("/detokenize", {"tokens": [int(one) for one in tokens]}, lambda data: json.loads(data)["content"])


def apply_template(messages: Sequence[Message], fields: Mapping[str, Any]) -> Call:
    return Call("/apply-template", {"messages": list(messages), **fields}, lambda data: json.loads(data)["prompt"])


SLOTS = Call("/slots", None, json.loads)
PROPS = Call("/props", None, json.loads)
METRICS = Call("/metrics", None, lambda data: data.decode())


def error_of(status: int, body: bytes) -> EngineError:
    """The exception for an answer that is not a success."""
    message = ""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace")[:500]
    return EngineError(message or f"the engine answered {status}", status=status, body=body)


def check_status(status: int, body: bytes) -> bytes:
    if status >= 400:
        raise error_of(status, body)
    return body


class EventStream:
    """Takes the bytes of a text/event-stream as they come and gives the JSON objects in it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line == b"data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            error = chunk.get("error")
            if error is not None:
                raise EngineError(str(error.get("message", error)), status=int(error.get("code", 500)), body=line[6:])
            yield chunk
