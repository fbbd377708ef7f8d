"""Memory limits and failures on request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cudasim import CudaSim
from programs import Held, run

pytest_plugins = ["fixtures_cudasim"]

MIB = 1 << 20
CONTEXT = 300 * MIB


def test_memory_is_limited(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        assert free_bytes() == 212 << 20
        p = malloc(200 << 20); assert free_bytes() == 12 << 20
        assert try_malloc(13 << 20) == OUT_OF_MEMORY and try_malloc(12 << 20) == OK
        assert rt.cudaGetLastError() == OUT_OF_MEMORY and rt.cudaGetLastError() == OK
        assert made(rt, "cudaMallocHost", c_size_t(64 << 20)), "pinned memory is not on the card"
        assert rt.cudaFree(c_void_p(p)) == OK and free_bytes() == 200 << 20
        """,
        memory_mib=512,
    )
    assert report.clean


def test_context_must_fit(sim: CudaSim) -> None:
    run(sim, "assert rt.cudaSetDevice(c_int(0)) == OUT_OF_MEMORY and not active()", memory_mib=299)


def test_nth_allocation_fails(sim: CudaSim) -> None:
    run(sim, "assert [try_malloc(1) for _ in range(4)] == [OK, OK, OUT_OF_MEMORY, OK]", fail_alloc=3)
    run(sim, "assert [try_malloc(1) for _ in range(4)] == [OK, OK, OUT_OF_MEMORY, OUT_OF_MEMORY]", fail_alloc="3+")
    later = "try_malloc(1); rt.cudasim_fail_alloc(2)"
    run(sim, f"{later}; assert [try_malloc(1) for _ in range(3)] == [OK, OUT_OF_MEMORY, OK]")


def test_failing_reset_destroys_nothing(sim: CudaSim) -> None:
    run(
        sim,
        """
        p = malloc(64); reset = rt.cudaDeviceReset
        assert reset() == UNKNOWN and active() and rt.cudaMemset(c_void_p(p), c_int(0), c_size_t(64)) == OK
        assert reset() == OK and not active()
        """,
        fail_reset=1,
    )
    run(sim, "malloc(1); assert [rt.cudaDeviceReset() for _ in range(3)] == [UNKNOWN] * 3", fail_reset=-1)


def test_lost_device_fails_everywhere(sim: CudaSim) -> None:
    code = """
    k = Kernel(); rt.cudaSetDevice(c_int(1)); assert [k.launch() for _ in range(3)] == [OK, OK, LAUNCH_FAILURE]
    assert {try_malloc(1), rt.cudaDeviceSynchronize(), rt.cudaDeviceReset()} == {LAUNCH_FAILURE}
    assert rt.cudaSetDevice(c_int(0)) == OK and try_malloc(1) == OK
    """
    report = run(sim, code, devices=2, lost="1@2")
    assert [device.lost for device in report.devices] == [False, True]
    run(sim, "assert rt.cudaSetDevice(c_int(1)) == LAUNCH_FAILURE", devices=2)  # also for a process that comes later


def test_device_can_be_lost_on_request(sim: CudaSim) -> None:
    run(sim, "malloc(1); rt.cudasim_lose_device(c_int(0)); assert try_malloc(1) == LAUNCH_FAILURE")


def test_device_can_be_lost_from_outside(sim: CudaSim, hold: Callable[..., Held]) -> None:
    program = hold("p = malloc(1); pause(); assert rt.cudaFree(c_void_p(p)) == LAUNCH_FAILURE")
    sim.lose_device(0)
    program.go_on()
    program.end()
    with pytest.raises(ValueError, match="no simulated device 16"):
        sim.lose_device(16)


def test_no_device(sim: CudaSim) -> None:
    calls = "rt.cudaGetDeviceCount(byref(c_int())), cu.cuInit(c_uint(0)), try_malloc(1), rt.cudaDeviceReset()"
    run(sim, f"assert {{{calls}}} == {{NO_DEVICE}}", devices=0)


def test_visible_devices(sim: CudaSim) -> None:
    check = "n = c_int(); assert rt.cudaGetDeviceCount(byref(n)) == OK; assert n.value == {}; malloc(1)"
    uuid = run(sim, check.format(3), devices=3).devices[1].uuid
    for text, count, first in (("2,0", 2, 2), (uuid, 1, 1), ("1,7,0", 1, 1)):
        report = run(sim, check.format(count), {"CUDA_VISIBLE_DEVICES": text}, devices=3)
        assert report.context_events[-1].device == first


def test_rocm_leaves_memory_after_blas(sim: CudaSim, hold: Callable[..., Held]) -> None:
    options = {"residual_mib": 174, "context_mib": 16}
    assert run(sim, "malloc(1); rt.cudaDeviceReset(); assert not active()", **options).bytes == 0
    code = """
    h, p = made(blas, "cublasCreate_v2"), malloc(64)
    assert free_bytes() == (8192 - 16 << 20) - 64, "the handle alone leaves nothing"
    assert gemm(h, p, p, p) == 0; blas.cublasDestroy_v2(c_void_p(h)); rt.cudaDeviceReset()
    """
    program = hold(code, **options)
    report = sim.report()
    assert (report.contexts, report.live, report.bytes) == (0, {}, 174 * MIB)
    program.end()
    assert sim.report().bytes == 0
