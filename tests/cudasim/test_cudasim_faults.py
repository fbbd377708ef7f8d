"""Every stale or wrong use is seen and counted by name."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from cudasim import CudaSim
from programs import Held, popen, run

pytest_plugins = ["fixtures_cudasim"]

MIB = 1 << 20
CONTEXT = 300 * MIB


STALE = {
    "stream": ("h = stream()", "rt.cudaStreamSynchronize(c_void_p(h))", "cudaStreamSynchronize"),
    "event": ("h = event()", "rt.cudaEventSynchronize(c_void_p(h))", "cudaEventSynchronize"),
    "graph": (
        "h = capture(stream())",
        "rt.cudaGraphInstantiate(byref(c_void_p()), c_void_p(h), c_ulonglong(0))",
        "cudaGraphInstantiate",
    ),
    "graph_exec": ("h = instantiate(capture(stream()))", "rt.cudaGraphLaunch(c_void_p(h), None)", "cudaGraphLaunch"),
}


@pytest.mark.parametrize("kind", STALE)
def test_handle_of_a_destroyed_context_is_stale(sim: CudaSim, kind: str) -> None:
    make, use, api = STALE[kind]
    report = run(sim, f"{make}\nrt.cudaDeviceReset()\nassert {use} == INVALID_HANDLE")
    assert (report.stale, report.stale_total, report.misuse) == ({kind: {api: 1}}, 1, {})


def test_destroyed_and_wrong_handles_are_told_apart(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        s = c_void_p(stream()); assert rt.cudaStreamDestroy(s) == OK and rt.cudaStreamDestroy(s) == INVALID_HANDLE
        assert rt.cudaStreamSynchronize(c_void_p(event())) == INVALID_HANDLE
        assert rt.cudaEventDestroy(c_void_p(0x1234500)) == INVALID_HANDLE
        """,
    )
    assert report.stale == {"stream": {"cudaStreamDestroy": 1}}
    assert report.misuse == {"stream": {"cudaStreamSynchronize": 1}, "event": {"cudaEventDestroy": 1}}


def test_blas_handle_of_a_destroyed_context_is_stale(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        h, p = made(blas, "cublasCreate_v2"), malloc(256)
        assert gemm(h, p, p, p) == 0
        assert gemm(h, p, p, 4096) != 0, "a host address is no matrix"
        rt.cudaDeviceReset(); assert gemm(h, p, p, p) != 0
        """,
    )
    assert report.stale == {"blas_handle": {"cublasSgemm": 1}}
    assert report.misuse == {"pointer": {"cublasSgemm": 1}}


def test_pointers(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        host = ctypes.create_string_buffer(b"0123456789abcdef", 256); h = c_void_p(ctypes.addressof(host))
        p = malloc(256)
        copy = lambda to, source, n, kind: rt.cudaMemcpy(c_void_p(to), source, c_size_t(n), c_int(kind))
        assert copy(p, h, 256, HOST_TO_DEVICE) == OK
        assert rt.cudaMemset(c_void_p(p + 4), c_int(0), c_size_t(4)) == OK
        assert copy(h.value, c_void_p(p), 16, DEVICE_TO_HOST) == OK and host.raw[:10] == b"0123" + bytes(4) + b"89"
        assert copy(p + 1, h, 256, HOST_TO_DEVICE) == INVALID_VALUE, "one byte too far"
        assert copy(h.value, h, 16, HOST_TO_DEVICE) == INVALID_VALUE, "not a device address"
        assert rt.cudaFreeHost(c_void_p(p)) == INVALID_VALUE and rt.cudaFree(h) == INVALID_VALUE
        assert rt.cudaFree(c_void_p(p)) == OK and rt.cudaFree(c_void_p(p)) == INVALID_VALUE
        assert copy(p, h, 16, HOST_TO_DEVICE) == ILLEGAL_ADDRESS
        assert Kernel().launch(p) == ILLEGAL_ADDRESS
        """,
    )
    assert report.stale == {"pointer": {"cudaFree": 1, "cudaMemcpy": 1, "scale": 1}}
    assert report.misuse == {"pointer": {"cudaMemcpy": 2, "cudaFreeHost": 1, "cudaFree": 1}}


@pytest.mark.parametrize("end", ["rt.cudaFreeHost(c_void_p(p))", "rt.cudaDeviceReset()"])
def test_stale_read_on_the_cpu_faults(sim: CudaSim, end: str) -> None:
    code = f"p = made(rt, 'cudaMallocHost', c_size_t(64))\nctypes.string_at(p, 1)\n{end}\nctypes.string_at(p, 1)"
    process = popen(sim, code)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV


def test_host_registration_of_a_destroyed_context(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        p = c_void_p(ctypes.addressof(ctypes.create_string_buffer(64)))
        register = lambda: rt.cudaHostRegister(p, c_size_t(64), c_uint(0))
        assert register() == OK and rt.cudaHostUnregister(p) == OK and rt.cudaHostUnregister(p) == NOT_REGISTERED
        assert register() == OK; rt.cudaDeviceReset(); assert rt.cudaHostUnregister(p) == NOT_REGISTERED
        assert register() == OK, "the memory is the caller's and can be registered again"
        """,
    )
    assert (report.stale, report.misuse_total) == ({"pointer": {"cudaHostUnregister": 1}}, 1)


def test_raised_shared_memory_limit_is_lost(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        k, blocks = Kernel("flash_attention"), c_int()
        occupancy = rt.cudaOccupancyMaxActiveBlocksPerMultiprocessor
        fits = lambda: occupancy(byref(blocks), k.address, c_int(32), c_size_t(60000))
        assert k.launch(shared=49152) == OK and k.launch(shared=60000) == INVALID_VALUE, "never raised"
        assert k.raise_shared_limit(60000) == OK and k.launch(shared=60000) == OK and fits() == OK and blocks.value > 0
        assert k.raise_shared_limit(200000) == INVALID_VALUE, "more than the card has"
        rt.cudaDeviceReset()
        assert k.launch(shared=60000) == INVALID_VALUE and fits() == OK and blocks.value == 0
        assert k.raise_shared_limit(60000) == OK and k.launch(shared=60000) == OK
        """,
    )
    assert report.stale == {"attribute": {"flash_attention": 2}}
    assert report.misuse == {"attribute": {"flash_attention": 1}}


@pytest.mark.parametrize(("cc", "limit"), [(61, 48), (75, 64), (86, 99), (90, 227), (120, 99), (121, 99)])
def test_shared_memory_limit_follows_the_compute_capability(sim: CudaSim, cc: int, limit: int) -> None:
    statuses = f"[k.raise_shared_limit(size) for size in ({limit * 1024}, {limit * 1024 + 1})]"
    run(sim, f"k = Kernel(); assert {statuses} == [OK, INVALID_VALUE]", cc=cc)


def test_launches(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        k, s = Kernel("scale"), stream()
        assert k.launch(on=s) == OK
        assert k.launch(grid=0) == INVALID_CONFIGURATION and k.launch(block=1025) == INVALID_CONFIGURATION
        other = Kernel("other"); other.address = c_void_p(4096)
        assert other.launch() == INVALID_FUNCTION
        rt.cudaSetDevice(c_int(1)); assert k.launch(on=s) == INVALID_HANDLE, "a stream of device 0"
        here = malloc(64); rt.cudaSetDevice(c_int(0)); assert k.launch(here) == ILLEGAL_ADDRESS, "memory of device 1"
        assert rt.cudaDeviceEnablePeerAccess(c_int(1), c_uint(0)) == OK and k.launch(here) == OK
        rt.cudaDeviceReset(); assert k.launch(here) == ILLEGAL_ADDRESS, "peer access is lost"
        """,
        devices=2,
    )
    assert report.stale == {"peer_access": {"scale": 1}}
    kernel = {"geometry": 2, "stream": 1, "peer_access": 1}
    assert report.misuse == {"function": {"cudaLaunchKernel": 1}, **{kind: {"scale": n} for kind, n in kernel.items()}}


def test_unloaded_module_forgets_its_kernels(sim: CudaSim) -> None:
    code = """
    k = Kernel(); assert k.launch() == OK
    rt.__cudaUnregisterFatBinary(Kernel._module); assert k.launch() == INVALID_FUNCTION
    """
    assert run(sim, code).misuse_total == 1


def test_captured_work(sim: CudaSim) -> None:
    report = run(
        sim,
        """
        k, s, other, e = Kernel(), stream(), stream(), event()
        p = malloc(64)
        def join():
            return rt.cudaEventRecord(c_void_p(e), c_void_p(s)) or rt.cudaStreamWaitEvent(c_void_p(other), c_void_p(e), 0)
        rt.cudasim_trace_reset()
        assert rt.cudaStreamBeginCapture(c_void_p(s), c_int(2)) == OK
        assert rt.cudaStreamSynchronize(c_void_p(s)) == CAPTURE_UNSUPPORTED
        assert k.launch(p, on=s) == OK and join() == OK and k.launch(p, on=other) == OK
        graph = made_last(rt.cudaStreamEndCapture, s)
        assert trace()[0] == 0, "captured, not launched"
        exec_ = instantiate(graph)
        launch = lambda: rt.cudaGraphLaunch(c_void_p(exec_), c_void_p(s))
        assert launch() == OK and trace()[0] == 2
        assert k.launch(p, on=other) == OK and trace()[0] == 3, "the second stream left the capture"
        assert rt.cudaStreamEndCapture(c_void_p(s), byref(c_void_p())) == INVALID_VALUE
        assert rt.cudaFree(c_void_p(p)) == OK and launch() == ILLEGAL_ADDRESS
        assert rt.cudaGraphExecDestroy(c_void_p(exec_)) == OK and launch() == INVALID_HANDLE
        """,
    )
    assert report.stale == {"pointer": {"scale": 1}, "graph_exec": {"cudaGraphLaunch": 1}}
    assert report.misuse == {"stream": {"cudaStreamEndCapture": 1}}


def test_virtual_memory(sim: CudaSim, hold: Callable[..., Held]) -> None:
    program = hold(
        """
        size = 4 << 20
        prop = ctypes.create_string_buffer(64)  # all zero: device 0
        access = ctypes.create_string_buffer(16)
        p = made(cu, "cuMemAddressReserve", c_size_t(2 * size), c_size_t(0), c_ulonglong(0), c_ulonglong(0))
        h = made(cu, "cuMemCreate", c_size_t(size), prop, c_ulonglong(0))
        memset = lambda at: rt.cudaMemset(c_void_p(at), c_int(1), c_size_t(16))
        assert memset(p) == ILLEGAL_ADDRESS, "reserved only"
        map_ = lambda: cu.cuMemMap(c_ulonglong(p), c_size_t(size), c_size_t(0), c_ulonglong(h), c_ulonglong(0))
        assert map_() == OK and map_() == INVALID_VALUE, "mapped twice"
        assert cu.cuMemSetAccess(c_ulonglong(p), c_size_t(size), access, c_size_t(1)) == OK
        assert cu.cuMemRelease(c_ulonglong(h)) == OK and cu.cuMemRelease(c_ulonglong(h)) == INVALID_VALUE
        assert memset(p) == OK and memset(p + size) == ILLEGAL_ADDRESS
        free_ = lambda: cu.cuMemAddressFree(c_ulonglong(p), c_size_t(2 * size))
        assert free_() == INVALID_VALUE, "still mapped"
        rt.cudaDeviceReset()
        pause()
        assert cu.cuMemUnmap(c_ulonglong(p), c_size_t(size)) == OK and free_() == OK and free_() == INVALID_VALUE
        """
    )
    report = sim.report()
    assert (report.live, report.bytes) == ({"vmm_reservation": 1, "vmm_allocation": 1}, 4 * MIB), "both survive a reset"
    program.go_on()
    assert (sim.report().live, sim.report().bytes) == ({}, 0)


def test_without_virtual_memory(sim: CudaSim) -> None:
    code = """
    supported, prop = c_int(7), ctypes.create_string_buffer(64)
    assert cu.cuDeviceGetAttribute(byref(supported), c_int(102), c_int(0)) == OK and supported.value == 0
    assert cu.cuMemCreate(byref(c_void_p()), c_size_t(1), prop, c_ulonglong(0)) == NOT_SUPPORTED
    """
    run(sim, code, vmm=False)


def test_faults_can_be_counted_without_failing(sim: CudaSim) -> None:
    code = """
    k, s = Kernel(), stream(); k.raise_shared_limit(60000); rt.cudaDeviceReset()
    for _ in range(3): assert k.launch(shared=60000) == OK and k.launch(on=s) == OK
    """
    assert run(sim, code, on_fault="continue").stale == {"attribute": {"scale": 3}, "stream": {"cudaLaunchKernel": 3}}


def test_fault_can_abort(sim: CudaSim) -> None:
    process = popen(sim, "rt.cudaFree(c_void_p(4096))", on_fault="abort", verbose=1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT
    assert "MISUSE pointer: cudaFree" in errors


def test_trace_tells_launches_apart(sim: CudaSim) -> None:
    run(
        sim,
        """
        def traced(*launches):
            rt.cudasim_trace_reset()
            for launch in launches: assert launch() == OK
            return trace()
        a, b = Kernel("a"), Kernel("b")
        assert traced(a.launch, b.launch) == traced(a.launch, b.launch) and traced(a.launch)[0] == 1
        seen = [traced(a.launch, b.launch), traced(b.launch, a.launch), traced(a.launch)]
        seen += [traced(lambda: a.launch(**{what: 64})) for what in ("grid", "block", "shared")]
        assert len({hash_ for _, hash_ in seen}) == len(seen)
        rt.cudaDeviceReset(); assert traced(a.launch, b.launch) == seen[0], "the same in every generation"
        """,
    )
