"""The boundary to the native library. Only the lowest modules of the package use what is here.

`lib` has every function of llama.h, ggml.h, ggml-alloc.h, ggml-backend.h, gguf.h and mtmd.h, and those of our shim
(pyggml.h); `ffi` makes and reads C data. Calls release the GIL. Importing this loads no backend.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..errors import OutOfMemoryError, PyggmlError


def _load() -> tuple[Any, Any]:
    flags = sys.getdlopenflags() if hasattr(sys, "getdlopenflags") else 0
    backtrace = os.environ.get("GGML_NO_BACKTRACE")
    try:
        # Another package may have put its own llama.cpp into the global scope of the dynamic linker; ours must find itself first.
        if hasattr(os, "RTLD_DEEPBIND"):
            sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        # ggml would take over std::terminate() for the whole process, and start a debugger in it.
        os.environ["GGML_NO_BACKTRACE"] = "1"
        from pyggml._native import _ffi
    except ImportError as error:
        raise ImportError(f"the native library of pyggml cannot be loaded: {error}") from error
    finally:
        if backtrace is None:
            os.environ.pop("GGML_NO_BACKTRACE", None)
        if hasattr(sys, "setdlopenflags"):
            sys.setdlopenflags(flags)
    return _ffi.ffi, _ffi.lib


ffi, lib = _load()
lib.pyggml_start()


def reason() -> str:
    """Why the last call of this thread failed."""
    return text(lib.pyggml_error())


def text(value: Any) -> str:
    """A C string as str."""
    result: bytes = ffi.string(value)
    return result.decode("utf-8", "replace")


def check(status: int, what: str) -> None:
    """Raise what a status of the shim means; `what` says what was tried."""
    if status == lib.PYGGML_OK:
        return
    if status == lib.PYGGML_NO_MEMORY:
        raise OutOfMemoryError(f"{what}: {reason()}")
    raise PyggmlError(f"{what}: {reason()}")
