"""Chat templates: a conversation as the text that a model continues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import checks
from ._native import ffi, lib, reason


def request(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    enable_thinking: bool,
    variables: Mapping[str, Any],
) -> bytes:
    """What the shim takes."""
    content = {
        "messages": [_mapping("a message", one) for one in checks.items("messages", messages, "messages (dict)")],
        "add_generation_prompt": checks.flag("add_generation_prompt", add_generation_prompt),
        "enable_thinking": checks.flag("enable_thinking", enable_thinking),
        "kwargs": variables,
    }
    if tools:
        content["tools"] = [_mapping("a tool", one) for one in checks.items("tools", tools, "tools (dict)")]
    try:
        return json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"messages, tools and template variables must be JSON values: {error}") from None


def new(model: Any, source: bytes | None) -> Any:
    """A template ready for use; the model's own without a `source`. To be freed by `lib.pyggml_chat_free()`."""
    out = ffi.new("struct pyggml_chat **")
    if lib.pyggml_chat_new(model, ffi.NULL if source is None else source, out):
        raise ValueError(f"the chat template is not valid: {reason()}")
    return out[0]


def render(chat: Any, encoded: bytes) -> str:
    prompt, length = ffi.new("char **"), ffi.new("size_t *")
    if lib.pyggml_chat_render(chat, encoded, prompt, length):
        raise ValueError(f"the chat template cannot render these messages: {reason()}")
    return bytes(ffi.buffer(prompt[0], length[0])).decode("utf-8", "replace")  # it may contain null characters


def _mapping(what: str, value: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a dict, not {type(value).__name__}")
    return dict(value)
