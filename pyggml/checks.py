"""Arguments, checked before C sees them: a wrong type is a TypeError, a wrong value a ValueError, and both name the argument."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from . import errors
from ._native import ffi, lib, text

_PATH_ERRORS = {
    lib.PYGGML_GGUF_MISSING: errors.ModelFileNotFoundError,
    lib.PYGGML_GGUF_DIRECTORY: errors.ModelFileIsADirectoryError,
    lib.PYGGML_GGUF_PERMISSION: errors.ModelFilePermissionError,
}


def integer(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """An int, or what can stand for one (numpy's integers), from `least` to `most`."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {number}")
    return number


def number(name: str, value: float, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite float (or int) from `least` to `most`, that a C float can hold."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not abs(result) < 3.4e38:
        raise ValueError(f"{name} must be a finite number, not {result}")
    if not least <= result <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be {bounds}, not {result:g}")
    return result


def flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


def word(name: str, value: str, words: Iterable[str]) -> str:
    """One of several words."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if value not in (known := tuple(words)):
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value


def string(name: str, value: str) -> bytes:
    """Text for C."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{name} cannot contain a null character")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be written as UTF-8: {error.reason}") from None


def function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")


def items(name: str, value: Iterable[Any], what: str) -> Sequence[Any]:
    """Several of something; a text is not several texts."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of {what}, not {type(value).__name__}")
    return list(value)


def tokens(name: str, value: Iterable[SupportsIndex], n_vocab: int) -> list[int]:
    """Tokens of a vocabulary of this size."""
    found = items(name, value, "tokens (int)")
    return [integer(f"{name}: a token", one, 0, n_vocab - 1) for one in found]


def check_file(path: str | os.PathLike[str]) -> bytes:
    """Refuse a file that the loader cannot take, before it tries. Returns the path for C."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"a path must be str or os.PathLike[str], not {type(path).__name__}")
    encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise ValueError("a path cannot contain a null character")
    if not encoded:
        raise ValueError("the path is empty")
    message = ffi.new("char[]", 1024)
    code = lib.pyggml_gguf_check(encoded, message, len(message))
    if code:
        raise _PATH_ERRORS.get(code, errors.ModelLoadError)(f"{name}: {text(message)}")
    return encoded
