"""Which calls create a context, and what is destroyed with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cudasim import CudaSim
from programs import Held, run

pytest_plugins = ["fixtures_cudasim"]

MIB = 1 << 20
CONTEXT = 300 * MIB


CREATE_NONE = [
    "rt.cudaGetDeviceCount(byref(c_int()))",
    "rt.cudaGetDevice(byref(c_int()))",
    "rt.cudaDeviceGetAttribute(byref(c_int()), c_int(75), c_int(0))",
    "rt.cudaGetDeviceProperties(ctypes.create_string_buffer(8192), c_int(0))",
    "rt.cudaDeviceCanAccessPeer(byref(c_int()), c_int(0), c_int(1))",
    "rt.cudaDeviceGetPCIBusId(ctypes.create_string_buffer(32), c_int(32), c_int(0))",
    "rt.cudaDriverGetVersion(byref(c_int()))",
    "rt.cudaDeviceReset()",
    "cu.cuInit(c_uint(0))",
    "cu.cuDeviceTotalMem_v2(byref(c_size_t()), c_int(0))",
    "cu.cuDevicePrimaryCtxGetState(c_int(0), byref(c_uint()), byref(c_int()))",
    "cu.cuCtxGetCurrent(byref(c_void_p()))",
]
CREATE_ONE = {
    "cudaSetDevice": "rt.cudaSetDevice(c_int(0))",
    "cudaMemGetInfo": "rt.cudaMemGetInfo(byref(c_size_t()), byref(c_size_t()))",
    "cudaMalloc": "try_malloc(256)",
    "cudaFree": "rt.cudaFree(None)",
    "cudaMallocHost": "rt.cudaMallocHost(byref(c_void_p()), c_size_t(64))",
    "cudaStreamCreate": "stream() * 0",
    "cudaDeviceSynchronize": "rt.cudaDeviceSynchronize()",
    "cublasCreate": "made(blas, 'cublasCreate_v2') * 0",
    "cuDevicePrimaryCtxRetain": "made(cu, 'cuDevicePrimaryCtxRetain', c_int(0)) * 0",
}


def test_queries_create_no_context(sim: CudaSim) -> None:
    calls = "\n".join(f"assert {call} == OK, {call!r}" for call in CREATE_NONE)
    report = run(sim, f"{calls}\nassert not active(0) and not active(1)", devices=2)
    assert report.contexts_created == 0


@pytest.mark.parametrize("api", CREATE_ONE)
def test_what_needs_a_context_creates_it_and_is_named(sim: CudaSim, hold: Callable[..., Held], api: str) -> None:
    program = hold(f"assert {CREATE_ONE[api]} == OK\nassert active(0) and not active(1)", devices=2)
    report = sim.report()
    assert (report.contexts, [event.api for event in report.context_events]) == (1, [api])
    assert report.devices[0].processes[0].context == CONTEXT
    program.end()
    assert sim.report().bytes == 0


def test_reset_destroys_all_but_reservations(sim: CudaSim, hold: Callable[..., Held]) -> None:
    program = hold(
        """
        malloc(1 << 20); made(rt, "cudaMallocHost", c_size_t(64)); s = stream(); event()
        made(blas, "cublasCreate_v2"); instantiate(capture(s))
        rt.cudaHostRegister(c_void_p(ctypes.addressof(ctypes.create_string_buffer(64))), c_size_t(64), c_uint(0))
        assert rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)) == OK
        made(cu, "cuMemAddressReserve", c_size_t(2 << 20), c_size_t(0), c_ulonglong(0), c_ulonglong(0))
        pause()
        assert rt.cudaDeviceReset() == OK and not active(0)
        """,
        devices=2,
    )
    report = sim.report()
    memory = ["device_memory", "pinned_memory", "host_registration", "vmm_reservation"]
    handles = ["stream", "event", "graph", "graph_exec", "blas_handle", "peer_access"]
    assert report.live == dict.fromkeys(memory + handles, 1)
    assert report.bytes == 2 * CONTEXT + MIB
    program.go_on()
    report = sim.report()
    assert report.live == {"vmm_reservation": 1}
    assert (report.bytes, report.contexts) == (CONTEXT, 1), "device 1's context is not that of the reset device"


def test_flags_peers_and_limits_are_lost_by_a_reset(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        flags = c_uint()
        assert rt.cudaSetDeviceFlags(c_uint(1)) == OK and rt.cudaGetDeviceFlags(byref(flags)) == OK and flags.value == 1
        assert rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)) == OK
        assert rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)) == PEER_ALREADY_ENABLED
        rt.cudaDeviceReset()
        assert rt.cudaGetDeviceFlags(byref(flags)) == OK and flags.value == 0
        assert rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)) == OK
        """,
        devices=2,
    )
    assert report.clean


def test_retained_context_lives_until_released(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        context = made(cu, "cuDevicePrimaryCtxRetain", c_int(0))
        assert cu.cuDevicePrimaryCtxRelease_v2(c_int(0)) == OK and not active()
        assert cu.cuCtxSetCurrent(c_void_p(context)) == INVALID_CONTEXT
        assert cu.cuDevicePrimaryCtxRelease_v2(c_int(0)) == INVALID_CONTEXT
        malloc(1); assert cu.cuDevicePrimaryCtxReset_v2(c_int(0)) == OK and not active()
        """,
    )
    assert report.stale == {"context": {"cuCtxSetCurrent": 1}}
    assert report.misuse == {"context": {"cuDevicePrimaryCtxRelease": 1}}


def test_driver_functions_are_found_through_the_runtime(sim: CudaSim) -> None:
    run(
        sim,
        """
        f, found = c_void_p(), c_int(9)
        name = b"cuDevicePrimaryCtxGetState"
        assert rt.cudaGetDriverEntryPointByVersion(name, byref(f), c_uint(12000), c_ulonglong(0), byref(found)) == OK
        assert f.value == ctypes.cast(cu.cuDevicePrimaryCtxGetState, c_void_p).value and found.value == 0
        assert rt.cudaGetDriverEntryPoint(b"cuNothing", byref(f), c_ulonglong(0), byref(found)) == OK
        assert found.value == 1 and not f.value
        """,
    )
