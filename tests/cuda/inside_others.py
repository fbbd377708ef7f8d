"""Others who use a card in the same process. Run by `test_python.py`."""

from __future__ import annotations

import ctypes
import sys
import types
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from inside import MIB, MODEL, answer, assert_clean, assert_released, refused, report, run, used

import pyggml
from pyggml import ForeignContextError


def foreign_memory() -> c_void_p:
    """4 MiB on the first card that somebody else has allocated."""
    runtime, pointer = ctypes.CDLL("libcudart.so.13"), c_void_p()
    assert runtime.cudaSetDevice(c_int(0)) == 0
    assert runtime.cudaMalloc(byref(pointer), c_size_t(4 * MIB)) == 0
    return pointer


def usable(pointer: c_void_p) -> bool:
    runtime = ctypes.CDLL("libcudart.so.13")
    # a call that only names memory creates a context on the thread's current device
    return runtime.cudaSetDevice(c_int(0)) == 0 and runtime.cudaMemset(pointer, c_int(7), c_size_t(4 * MIB)) == 0


def foreign_before() -> None:
    theirs = foreign_memory()
    answer(devices=["CUDA0"])
    refused(ForeignContextError, "CUDA0", "force=True")
    refused(ForeignContextError, "CUDA0", devices=["CUDA0"])
    assert usable(theirs)
    answer()
    assert_released(pyggml.backend_free(devices=["CUDA1"]))
    assert usable(theirs) and used(1) == 0
    assert_released(pyggml.backend_free(force=True))
    assert not usable(theirs) and report()["stale"], "the reset took their memory"


def foreign_unused() -> None:
    """We never used the card that somebody else has a context on."""
    theirs = foreign_memory()
    pyggml.devices()
    refused(ForeignContextError, "CUDA0")
    answer(devices=["CUDA1"])
    refused(ForeignContextError, "CUDA0")
    assert_released(pyggml.backend_free(devices=["CUDA1"]))
    assert usable(theirs) and used(1) == 0


def foreign_after() -> None:
    """Who comes after us cannot be detected, and loses its memory: documented, and here so that it does not change unnoticed."""
    with pyggml.Model(MODEL, devices=["CUDA0"]):
        theirs = foreign_memory()
        assert usable(theirs)
    assert_released(pyggml.backend_free())
    assert not usable(theirs)


def library(name: str, modules: dict[str, Any], initialised: bool) -> None:
    """A library that says that it is initialised, or that it is not: `modules` are stand-ins for those of it that are asked."""
    sys.modules.update(modules)
    pyggml.devices()
    assert not pyggml.backend_free().devices[0].context_active
    answer()
    if initialised:
        refused(ForeignContextError, name, "force=True")
        refused(ForeignContextError, name, devices=["CUDA1"])
    assert_released(pyggml.backend_free(force=initialised))
    assert_clean()
    pyggml.devices()
    assert_released(pyggml.backend_free())  # nothing of ours, nothing to reset, nothing to refuse


def torch(initialised: bool) -> None:
    cuda = types.SimpleNamespace(is_initialized=lambda: initialised)
    library("torch", {"torch": types.SimpleNamespace(cuda=cuda)}, initialised)


def cupy(initialised: bool) -> None:
    pool = types.SimpleNamespace(total_bytes=lambda: 512 * initialised)
    library("cupy", {"cupy": types.SimpleNamespace(get_default_memory_pool=lambda: pool)}, initialised)


def jax(initialised: bool) -> None:
    bridge = types.SimpleNamespace(_backends={"cpu": object(), **({"cuda": object()} if initialised else {})})
    library("jax", {"jax": types.ModuleType("jax"), "jax._src.xla_bridge": bridge}, initialised)


def numba(initialised: bool) -> None:
    device = types.SimpleNamespace(primary_context=object() if initialised else None)
    driver = types.SimpleNamespace(driver=types.SimpleNamespace(devices={0: device}))
    library("numba", {"numba": types.ModuleType("numba"), "numba.cuda.cudadrv.driver": driver}, initialised)


def broken_library(_: bool) -> None:
    """A version that answers otherwise is not detected, and breaks nothing."""
    library("torch", {"torch": types.SimpleNamespace(cuda=None)}, False)


def real_torch() -> None:
    import torch

    assert not torch.cuda.is_initialized()
    answer()
    assert_released(pyggml.backend_free())
    assert_clean()


if __name__ == "__main__":
    run(globals())
