"""What the tests share: places, a fresh interpreter, and the backend of testbackend.cpp with its controls."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import cffi

import pyggml

# for extract(): the filter came with Python 3.11.4
SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "tests"
LIB = Path(pyggml.ffi.string(pyggml.lib.ggml_backend_directory()).decode())
UPSTREAM = ROOT / "vendor" / "llama.cpp" / "upstream"


_controls = cffi.FFI()
_controls.cdef("""
    struct controls {
        int32_t refuse, fail_score, fail_init, fail_alloc, residual, foreign;
        int32_t hook_calls, hook_device, counted;
        int32_t backends[2], backends_made[2], buffers[2], buffers_made[2];
        int64_t bytes[2];
        uint32_t generation[2];
        int32_t active[2];
    };
""")


class TestBackend:
    """The backend of testbackend.cpp, and what it counts and how it misbehaves."""

    __test__ = False
    controls: Any = None  # of the module, which stays in the process

    def __init__(self, path: Path) -> None:
        self.path = path
        if self.controls is not None:
            self.controls.fail_score = 0
        self.reg = pyggml.lib.ggml_backend_load(bytes(path))
        assert self.reg
        address = pyggml.lib.ggml_backend_reg_get_proc_address(self.reg, b"test_controls")
        type(self).controls = _controls.cast("struct controls *", int(pyggml.ffi.cast("uintptr_t", address)))

    def leave(self) -> None:
        """Behave again, and do not come back for tests that do not ask for it."""
        for name in ("refuse", "fail_score", "fail_init", "fail_alloc", "residual", "foreign"):
            setattr(self.controls, name, 0)
        pyggml.backend_free(force=True)
        self.controls.fail_score = 1

    def load(self) -> Any:
        return pyggml.lib.ggml_backend_load(bytes(self.path))

    def device(self, name: str) -> Any:
        return pyggml.lib.ggml_backend_dev_by_name(name.encode())


def run_python(code: str, *arguments: str, timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, with every warning shown."""
    command = [sys.executable, "-X", "faulthandler", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)  # type: ignore[call-overload]
