"""Devices: what a model can be put on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ._native import ffi, lib, text


class DeviceType(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    IGPU = "igpu"  # integrated, shares the host's memory
    ACCELERATOR = "accelerator"  # helps the CPU (BLAS, AMX)
    META = "meta"  # several devices that work as one


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its backend describes it. A value: it holds nothing, and stays valid when the backend is freed."""

    name: str
    description: str
    type: DeviceType
    backend: str
    device_id: str | None
    """A PCI address such as 0000:01:00.0 where the backend tells."""

    @classmethod
    def of(cls, handle: Any) -> Device:
        properties = ffi.new("struct ggml_backend_dev_props *")
        kinds = {
            lib.GGML_BACKEND_DEVICE_TYPE_CPU: DeviceType.CPU,
            lib.GGML_BACKEND_DEVICE_TYPE_GPU: DeviceType.GPU,
            lib.GGML_BACKEND_DEVICE_TYPE_IGPU: DeviceType.IGPU,
            lib.GGML_BACKEND_DEVICE_TYPE_ACCEL: DeviceType.ACCELERATOR,
            lib.GGML_BACKEND_DEVICE_TYPE_META: DeviceType.META,
        }
        lib.ggml_backend_dev_get_props(handle, properties)
        return cls(
            name=text(properties.name),
            description=text(lib.ggml_backend_dev_description(handle)),
            type=kinds[lib.ggml_backend_dev_type(handle)],
            backend=text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle))),
            device_id=text(properties.device_id) if properties.device_id else None,
        )
