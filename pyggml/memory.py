"""Who holds how much memory on which device. Reading creates no context on a device and wakes none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._native import ffi, lib
from .device import Device, DeviceType
from .lifecycle import changed, check_process, device_handles


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device, in bytes. None means that nobody tells; it is never a guess."""

    device: str
    total: int | None
    used: int | None
    """By everybody."""
    own: int | None
    """By this process. For the CPU its resident memory."""
    source: str
    """Where the figures come from."""
    context_active: bool | None
    """Whether this process has a context on the device."""


def devices() -> list[DeviceMemory]:
    """Memory of every device whose backend is loaded; after `backend_free()` there is none."""
    check_process()
    with changed:
        return [of_device(handle) for handle in device_handles()]


def of_device(handle: Any) -> DeviceMemory:
    device = Device.of(handle)
    if device.type is DeviceType.CPU:
        return host(device.name)
    state = device_state(handle)
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(handle, free, total)
    known = total[0] > 0
    return DeviceMemory(
        device=device.name,
        total=total[0] if known else None,
        used=total[0] - free[0] if known else None,
        own=None if state is None or state.held < 0 else state.held,
        source=f"ggml ({device.backend})" if known else "unknown",
        context_active=None if state is None or state.context_active < 0 else bool(state.context_active),
    )


def device_state(handle: Any) -> Any:
    """struct ggml_backend_device_state of a device, loaded or not; None where its backend does not tell."""
    state = ffi.new("struct ggml_backend_device_state *")
    return state if lib.ggml_backend_dev_state(handle, state) else None


def host(name: str = "CPU") -> DeviceMemory:
    """Memory of the machine and of this process."""
    machine = _fields("/proc/meminfo")
    process = _fields("/proc/self/status")
    total, available = machine.get("MemTotal"), machine.get("MemAvailable")
    return DeviceMemory(
        device=name,
        total=total,
        used=total - available if total is not None and available is not None else None,
        own=process.get("VmRSS"),
        source="/proc" if process else "unknown",
        context_active=None,
    )


def mib(value: int | None) -> str:
    """For a table."""
    return "unknown" if value is None else f"{value / 2**20:.1f} MiB"


def _fields(path: str) -> dict[str, int]:
    """Fields of /proc that are given in kB, in bytes."""
    result = {}
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if value.endswith("kB\n"):
                    result[name] = int(value.split()[0]) * 1024
    except OSError:
        pass  # not Linux
    return result
