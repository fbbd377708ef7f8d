"""Other users of a device in this process, whose memory a device reset would destroy.

No interface tells who holds a primary context. It is somebody else's if it was active before our first use of the device, or if
a library that is known to hold one says that it is initialised. Anybody else cannot be detected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import memory
from ._native import lib, text
from .errors import ForeignContextError

# Backends whose release is a device reset.
_RESET = {"CUDA", "ROCm", "MUSA"}


def _torch() -> bool:
    return bool(sys.modules["torch"].cuda.is_initialized())


def _cupy() -> bool:
    # it has no question for it; whoever has a memory pool with blocks has used a device
    return bool(sys.modules["cupy"].get_default_memory_pool().total_bytes())


def _jax() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = getattr(bridge, "_backends", {})
    return any(name in backends for name in ("cuda", "rocm", "gpu"))


def _numba() -> bool:
    driver = getattr(sys.modules.get("numba.cuda.cudadrv.driver"), "driver", None)
    # its list of devices is made by looking at it, its contexts only by using one
    return any(device.primary_context is not None for device in getattr(driver, "devices", {}).values())


_LIBRARIES: dict[str, Callable[[], bool]] = {"torch": _torch, "cupy": _cupy, "jax": _jax, "numba": _numba}


def users() -> list[str]:
    """The libraries in this process that say they use a GPU."""
    found = []
    for name, initialised in _LIBRARIES.items():
        if name in sys.modules:
            try:
                if initialised():
                    found.append(name)
            except Exception:
                continue  # a version of it that answers otherwise: not detectable
    return found


def check(handles: Sequence[Any]) -> None:
    """Raise ForeignContextError if somebody else is seen on one of the devices."""
    for handle in handles:
        if text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle))) not in _RESET:
            continue
        name = text(lib.ggml_backend_dev_name(handle))
        state = memory.device_state(handle)
        if state is not None and not state.context_active:
            continue  # nothing to reset
        if state is not None and state.foreign_context == 1:
            raise ForeignContextError(
                f"{name}: its context was there before pyggml used it, so it is somebody else's; a reset would destroy their memory. "
                "Call backend_free(force=True) if that is meant."
            )
        if found := users():
            raise ForeignContextError(
                f"{name}: {', '.join(found)} is initialised in this process and loses its memory by a reset. "
                "Call backend_free(force=True) if that is meant."
            )
