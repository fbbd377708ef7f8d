"""NVML tells the same story, in its own order, to the packages that programs read it with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cudasim import CudaSim
from programs import Held, run

pytest_plugins = ["fixtures_cudasim"]

MIB = 1 << 20
CONTEXT = 300 * MIB


NVML_CALLS = """
import pynvml as n
n.nvmlInit()
count = n.nvmlDeviceGetCount()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
"""


@pytest.mark.parametrize("order", ["reverse", "same"])
def test_nvml_order_and_identity(sim: CudaSim, order: str) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    code = f"""
{NVML_CALLS}
assert [n.nvmlDeviceGetName(h)[-1] for h in handles] == {list("210" if order == "reverse" else "012")}
for d in range(3):
    text = ctypes.create_string_buffer(32); rt.cudaDeviceGetPCIBusId(text, c_int(32), c_int(d))
    uuid = ctypes.create_string_buffer(16); cu.cuDeviceGetUuid_v2(uuid, c_int(d)); u = uuid.raw.hex()
    by_pci = n.nvmlDeviceGetHandleByPciBusId(text.value)
    assert n.nvmlDeviceGetName(by_pci) == f"Simulated GPU {{d}}"
    name = f"GPU-{{u[:8]}}-{{u[8:12]}}-{{u[12:16]}}-{{u[16:20]}}-{{u[20:]}}"
    assert n.nvmlDeviceGetUUID(by_pci) == name
    assert n.nvmlDeviceGetPciInfo(by_pci).busId.endswith(text.value.decode()[4:])
    assert n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByUUID(name)) == f"Simulated GPU {{d}}"
    assert n.nvmlDeviceGetIndex(by_pci) == {"2 - d" if order == "reverse" else "d"}
assert n.nvmlSystemGetDriverVersion()
n.nvmlShutdown()
"""
    assert run(sim, code, devices=3, nvml_order=order).contexts_created == 0


def test_nvml_reports_the_same_bytes(sim: CudaSim, hold: Callable[..., Held]) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    program = hold("rt.cudaSetDevice(c_int(0)); malloc(64 << 20)", devices=2)
    pid, used = program.process.pid, CONTEXT + 64 * MIB
    code = f"""
{NVML_CALLS}
idle, busy = handles
assert [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(busy)] == [({pid}, {used})]
for f in ("nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"):
    assert [(p.pid, p.usedGpuMemory) for p in getattr(n, f)(busy)] == [({pid}, {used})]
assert n.nvmlDeviceGetComputeRunningProcesses(idle) == [] == n.nvmlDeviceGetGraphicsRunningProcesses(busy)
for version in (None, n.nvmlMemory_v2):
    m = n.nvmlDeviceGetMemoryInfo(busy, version)
    assert (m.total, m.used, m.free) == (8192 << 20, {used}, (8192 << 20) - {used})
assert n.nvmlDeviceGetPowerUsage(busy) > n.nvmlDeviceGetPowerUsage(idle) > 0
assert n.nvmlDeviceGetPerformanceState(busy) == 0 != n.nvmlDeviceGetPerformanceState(idle)
assert n.nvmlDeviceGetUtilizationRates(busy).gpu == 0
"""
    assert run(sim, code, devices=2).contexts_created == 1, "NVML created none"
    program.kill()
    run(sim, f"{NVML_CALLS}\nassert not any(n.nvmlDeviceGetComputeRunningProcesses(h) for h in handles)", devices=2)


def test_nvml_can_hide_processes_and_sees_a_lost_card(sim: CudaSim) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    code = f"""
malloc(1)
{NVML_CALLS}
assert n.nvmlDeviceGetComputeRunningProcesses(handles[0]) == [] and n.nvmlDeviceGetMemoryInfo(handles[0]).used
rt.cudasim_lose_device(c_int(0))
try: n.nvmlDeviceGetMemoryInfo(handles[0]); raise SystemExit("lost card answered")
except n.NVMLError_GpuIsLost: pass
"""
    run(sim, code, nvml_hide_pids=True)


def test_nvml_through_cuda_bindings(sim: CudaSim) -> None:
    pytest.importorskip("cuda.bindings.nvml", reason="cuda-bindings is not installed", exc_type=ImportError)
    code = """
    from cuda.bindings import nvml, driver
    nvml.init_v2()
    malloc(64 << 20)
    h = nvml.device_get_handle_by_index_v2(1)
    assert nvml.device_get_name(h) == "Simulated GPU 0"
    [process] = nvml.device_get_compute_running_processes_v3(h)
    assert (process.pid, process.used_gpu_memory) == (os.getpid(), 364 << 20)
    assert nvml.device_get_memory_info_v2(h).used == 364 << 20
    assert nvml.device_get_handle_by_uuid(nvml.device_get_uuid(h)) == h
    assert nvml.device_get_handle_by_pci_bus_id_v2(nvml.device_get_pci_info_v3(h).bus_id) == h
    assert driver.cuDevicePrimaryCtxGetState(0) == (driver.CUresult.CUDA_SUCCESS, 0, 1)
    assert driver.cuDevicePrimaryCtxGetState(1) == (driver.CUresult.CUDA_SUCCESS, 0, 0)
    nvml.shutdown()
    """
    run(sim, code, devices=2)
