"""Calls the simulated libraries by ctypes, in a process of its own that a test started with ``CudaSim.env()``."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONFIGURATION = 0, 1, 2, 3, 9
INVALID_FUNCTION, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 98, 100, 101, 201, 400
ILLEGAL_ADDRESS, PEER_ALREADY_ENABLED, NOT_REGISTERED, LAUNCH_FAILURE, NOT_SUPPORTED = 700, 704, 713, 719, 801
CAPTURE_UNSUPPORTED, UNKNOWN = 900, 999
MAX_DYNAMIC_SHARED_MEMORY = 8  # cudaFuncAttribute

rt = ctypes.CDLL("libcudart.so.13")
cu = ctypes.CDLL("libcuda.so.1")
blas = ctypes.CDLL("libcublas.so.13")


class Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


def made(library: ctypes.CDLL, function: str, *args: Any) -> int:
    """What a function that returns a handle or pointer through its first argument made; it must succeed."""
    out = c_void_p()
    status = getattr(library, function)(byref(out), *args)
    assert status == OK, f"{function}: {status}"
    return out.value or 0


def malloc(size: int) -> int:
    return made(rt, "cudaMalloc", c_size_t(size))


def try_malloc(size: int) -> int:
    """The status of an allocation."""
    return int(rt.cudaMalloc(byref(c_void_p()), c_size_t(size)))


def stream() -> int:
    return made(rt, "cudaStreamCreateWithFlags", c_uint(1))


def event() -> int:
    return made(rt, "cudaEventCreateWithFlags", c_uint(2))


def active(device: int = 0) -> bool:
    flags, state = c_uint(), c_int()
    assert cu.cuDevicePrimaryCtxGetState(c_int(device), byref(flags), byref(state)) == OK
    return bool(state.value)


def free_bytes() -> int:
    free, total = c_size_t(), c_size_t()
    assert rt.cudaMemGetInfo(byref(free), byref(total)) == OK
    return free.value


class Kernel:
    """A registered kernel that takes one pointer; its address is that of a buffer nobody executes."""

    _module = None

    def __init__(self, name: str = "scale") -> None:
        self._address = ctypes.create_string_buffer(1)
        self.address = c_void_p(ctypes.addressof(self._address))
        if Kernel._module is None:
            register = getattr(rt, "__cudaRegisterFatBinary")  # as an attribute Python would mangle the name
            register.restype = c_void_p
            Kernel._module = c_void_p(register(None))
        mangled = f"_Z{len(name)}{name}Pf".encode()
        none = [c_void_p()] * 5
        register = getattr(rt, "__cudaRegisterFunction")
        register(Kernel._module, self.address, c_char_p(mangled), c_char_p(mangled), c_int(-1), *none)

    def launch(self, pointer: int = 0, grid: int = 1, block: int = 32, shared: int = 0, on: int = 0) -> int:
        value = c_void_p(pointer)
        arguments = (c_void_p * 1)(ctypes.addressof(value))
        geometry = Dim3(grid, 1, 1), Dim3(block, 1, 1)
        return int(rt.cudaLaunchKernel(self.address, *geometry, arguments, c_size_t(shared), c_void_p(on)))

    def raise_shared_limit(self, size: int) -> int:
        return int(rt.cudaFuncSetAttribute(self.address, c_int(MAX_DYNAMIC_SHARED_MEMORY), c_int(size)))


def capture(on: int, *launches: Any) -> int:
    """A graph of what the callables launch on the stream."""
    assert rt.cudaStreamBeginCapture(c_void_p(on), c_int(2)) == OK
    for launch in launches:
        assert launch() == OK
    return made_last(rt.cudaStreamEndCapture, on)


def made_last(function: Any, *handles: int) -> int:
    """Like :func:`made` for a function whose last argument is the place for the result."""
    out = c_void_p()
    assert function(*[c_void_p(h) for h in handles], byref(out)) == OK
    return out.value or 0


def instantiate(graph: int) -> int:
    return made(rt, "cudaGraphInstantiate", c_void_p(graph), c_ulonglong(0))


def trace() -> tuple[int, int]:
    """Launches and their hash since the last reset of the trace."""
    rt.cudasim_trace_hash.restype = rt.cudasim_trace_launches.restype = c_ulonglong
    return rt.cudasim_trace_launches(), rt.cudasim_trace_hash()


def gemm(handle: int, a: int, b: int, c: int) -> int:
    """A product of 1 x 1 matrices."""
    one, n = byref(ctypes.c_float(1)), c_int(1)
    matrices = [c_void_p(a), n, c_void_p(b), n, one, c_void_p(c), n]
    return int(blas.cublasSgemm_v2(c_void_p(handle), c_int(0), c_int(0), n, n, n, one, *matrices))
