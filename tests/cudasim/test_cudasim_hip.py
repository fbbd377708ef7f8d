"""The HIP face of the same core: its names, and where it behaves unlike CUDA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cudasim import CudaSim
from programs import Held, run

pytest_plugins = ["fixtures_cudasim"]

MIB = 1 << 20
HIP = """
hip, hipblas = ctypes.CDLL("libamdhip64.so.5"), ctypes.CDLL("libhipblas.so.0")
def allocate(size=64): return made(hip, "hipMalloc", c_size_t(size))
def free(p): assert hip.hipFree(c_void_p(p)) == OK
def in_use(device=0):
    state = c_int(9); assert hip.hipDevicePrimaryCtxGetState(c_int(device), byref(c_uint()), byref(state)) == OK
    return state.value
def product(handle, p):
    one, n = byref(ctypes.c_float(1)), c_int(1)
    matrices = [c_void_p(p), n, c_void_p(p), n, one, c_void_p(p), n]
    return hipblas.hipblasSgemm(c_void_p(handle), c_int(111), c_int(111), n, n, n, one, *matrices)
"""


@pytest.fixture(autouse=True)
def needs_the_hip_libraries(library_dir: Path) -> None:
    if not (library_dir / "libamdhip64.so.5").exists():
        pytest.skip("the HIP headers (Debian's libamdhip64-dev) cannot be had")


def code(text: str) -> str:
    return HIP + text


def test_queries_and_set_device_create_no_context(sim: CudaSim) -> None:
    calls = [
        "hip.hipGetDeviceCount(byref(c_int()))",
        "hip.hipGetDeviceProperties(ctypes.create_string_buffer(8192), c_int(0))",
        "hip.hipDeviceGetAttribute(byref(c_int()), c_int(1), c_int(0))",
        "hip.hipSetDevice(c_int(1))",
        "hip.hipDeviceSynchronize()",
        "hip.hipDeviceReset()",
    ]
    report = run(sim, code(f"assert [{', '.join(calls)}] == [OK] * {len(calls)}\nassert not in_use(1)"), devices=2)
    assert report.contexts_created == 0


def test_reset_makes_everything_stale(sim: CudaSim) -> None:
    report = run(
        sim,
        code("""
s, e, p = made(hip, "hipStreamCreateWithFlags", c_uint(1)), made(hip, "hipEventCreateWithFlags", c_uint(2)), allocate()
assert in_use()
assert hip.hipDeviceReset() == OK and not in_use()
assert hip.hipStreamSynchronize(c_void_p(s)) == INVALID_HANDLE == hip.hipEventSynchronize(c_void_p(e))
assert hip.hipMemset(c_void_p(p), c_int(0), c_size_t(4)) == ILLEGAL_ADDRESS and hip.hipFree(c_void_p(p)) == INVALID_VALUE
"""),
    )
    assert report.stale == {
        "stream": {"hipStreamSynchronize": 1},
        "event": {"hipEventSynchronize": 1},
        "pointer": {"hipMemset": 1, "hipFree": 1},
    }


def test_shared_memory_need_not_be_asked_for(sim: CudaSim) -> None:
    report = run(
        sim,
        code("""
name, address = c_char_p(b"_Z5scalePf"), ctypes.create_string_buffer(1)
register = getattr(hip, "__hipRegisterFatBinary"); register.restype = c_void_p
hip.__hipRegisterFunction(c_void_p(register(None)), address, name, name, c_uint(0), *[c_void_p()] * 5)
value = c_void_p()
arguments = (c_void_p * 1)(ctypes.addressof(value))
def launch(shared):
    return hip.hipLaunchKernel(address, Dim3(1, 1, 1), Dim3(32, 1, 1), arguments, c_size_t(shared), c_void_p())
assert launch(65536) == OK and hip.hipDeviceReset() == OK and launch(65536) == OK and launch(65537) == INVALID_VALUE
"""),
    )
    assert (report.stale, report.misuse) == ({}, {"attribute": {"scale": 1}})


def test_four_steps_of_the_residual_probe(sim: CudaSim, hold: Callable[..., Held]) -> None:
    """Context only, after a product, after freeing all, after the reset: as it was measured on ROCm."""
    program = hold(
        code("""
p = allocate(MIB := 1 << 20); pause()
h = made(hipblas, "hipblasCreate"); assert product(h, p) == 0; pause()
assert hipblas.hipblasDestroy(c_void_p(h)) == 0; free(p); pause()
assert hip.hipDeviceReset() == OK and not in_use()
"""),
        context_mib=16,
        residual_mib=174,
    )
    held = []
    for _ in range(3):
        held.append(sim.report().bytes // MIB)
        program.go_on()
    held.append(sim.report().bytes // MIB)
    assert held == [17, 191, 190, 174]
    program.end()
    assert sim.report().bytes == 0
