"""Run GGUF models on llama.cpp, and give the GPU back when done.

with pyggml.Model("model.gguf") as model, model.context(n_ctx=4096) as context:
    for piece in context.generate("The capital of France is", max_tokens=32):
        print(piece, end="")
pyggml.backend_free()
"""

from . import log, memory
from ._native import ffi, lib
from .backend import DeviceRelease, ReleaseReport, Verdict, backend_free, devices
from .batch import Batch
from .context import Context
from .device import Device, DeviceType
from .engine import Engine
from .engine_channel import File
from .engine_state import EngineInfo, EngineState, SleepMode, SleepReport
from .errors import (
    AbortedError,
    BackendInUseError,
    ClosedError,
    ContextFullError,
    EngineError,
    ForeignContextError,
    ForkedError,
    LoadCancelledError,
    ModelFileIsADirectoryError,
    ModelFileNotFoundError,
    ModelFilePermissionError,
    ModelLoadError,
    OutOfMemoryError,
    PyggmlError,
)
from .generate import FinishReason, Generation
from .lora import LoraAdapter
from .model import Model
from .sampler import Sampler
from .vocab import Vocab

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "BackendInUseError",
    "Batch",
    "ClosedError",
    "Context",
    "ContextFullError",
    "Device",
    "DeviceRelease",
    "DeviceType",
    "Engine",
    "EngineError",
    "EngineInfo",
    "EngineState",
    "File",
    "FinishReason",
    "ForeignContextError",
    "ForkedError",
    "Generation",
    "LoadCancelledError",
    "LoraAdapter",
    "Model",
    "ModelFileIsADirectoryError",
    "ModelFileNotFoundError",
    "ModelFilePermissionError",
    "ModelLoadError",
    "OutOfMemoryError",
    "PyggmlError",
    "ReleaseReport",
    "Sampler",
    "SleepMode",
    "SleepReport",
    "Verdict",
    "Vocab",
    "backend_free",
    "devices",
    "ffi",
    "lib",
    "log",
    "memory",
]
