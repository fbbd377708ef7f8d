"""The form of a saved state: what it belongs to, a digest, and llama.cpp's own bytes.

llama.cpp trusts the bytes that it restores and may crash on damaged ones, so they reach it only if the digest is right.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

_MAGIC = b"pyggml state 1\n\0"
_DIGEST = 32
_HEADER = struct.Struct(f"<{len(_MAGIC)}s{_DIGEST}sQ")


def pack(kind: str, lora: list[str], cached: Mapping[int, list[int]], data: Any) -> bytes:
    """`kind` says which contexts can take it; `lora` and `cached` what `generate()` knows of it; `data` is llama.cpp's."""
    about = json.dumps({"kind": kind, "lora": lora, "cached": list(cached.items())}).encode()
    body = about + bytes(data)
    return _HEADER.pack(_MAGIC, _digest(body), len(about)) + body


def unpack(saved: memoryview, kind: str) -> tuple[list[str], dict[int, list[int]], memoryview]:
    """`lora`, `cached` and `data` of what `pack()` gave. Raises ValueError unless it is whole and of this `kind`."""
    saved = saved.cast("B")
    if len(saved) < _HEADER.size or saved[: len(_MAGIC)] != _MAGIC:
        raise ValueError("this is no state that save_state() of this version gave")
    _, digest, length = _HEADER.unpack_from(saved)
    body = saved[_HEADER.size :]
    if _digest(body) != digest:
        raise ValueError("the state is damaged: it is cut off, or bytes of it have changed")
    about = json.loads(bytes(body[:length]))
    if about["kind"] != kind:
        raise ValueError(
            f"the state is of another model or other settings: it is of {about['kind']!r}, this is {kind!r}"
        )
    return about["lora"], {key: tokens for key, tokens in about["cached"]}, body[length:]


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST).digest()
