"""What the tests share: the demo model, tiny models, and a backend of our own that can be watched."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cffi
import pytest

import pyggml
from pyggml.demo import model_path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "tests"
LIB = Path(pyggml.ffi.string(pyggml.lib.ggml_backend_directory()).decode())
UPSTREAM = ROOT / "vendor" / "llama.cpp" / "upstream"


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a real model."""
    return model_path()


@pytest.fixture(scope="session")
def test_backend() -> Path:
    """The module of tests/testbackend.cpp, compiled if it has changed."""
    source = Path(__file__).with_name("testbackend.cpp")
    module = BUILD / "libpyggml-test.so"
    inputs = [source, *ROOT.glob("vendor/llama.cpp/overlay/ggml/*.h"), LIB / "libpyggml.so"]
    if not module.exists() or module.stat().st_mtime < max(one.stat().st_mtime for one in inputs):
        BUILD.mkdir(parents=True, exist_ok=True)
        includes = [UPSTREAM / "ggml/include", UPSTREAM / "ggml/src", ROOT / "vendor/llama.cpp/overlay/ggml"]
        subprocess.run(
            [
                shutil.which("c++") or "c++",
                "-std=c++17",
                "-O1",
                "-fPIC",
                "-shared",
                "-Wall",
                "-Wextra",
                "-Wno-unused-function",
            ]
            + ["-DGGML_BACKEND_DL", "-DGGML_BACKEND_BUILD", "-DGGML_BACKEND_SHARED", "-DGGML_SHARED"]
            + [f"-I{one}" for one in includes]
            + [str(source), "-o", str(module), f"-L{LIB}", "-lpyggml", "-lpyggml-base", f"-Wl,-rpath,{LIB}"],
            check=True,
        )
    return module


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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reg = pyggml.lib.ggml_backend_load(bytes(path))
        assert self.reg
        address = pyggml.lib.ggml_backend_reg_get_proc_address(self.reg, b"test_controls")
        self.controls: Any = _controls.cast("struct controls *", int(pyggml.ffi.cast("uintptr_t", address)))

    def load(self) -> Any:
        return pyggml.lib.ggml_backend_load(bytes(self.path))

    def device(self, name: str) -> Any:
        return pyggml.lib.ggml_backend_dev_by_name(name.encode())


@pytest.fixture
def backend(test_backend: Path) -> Iterator[TestBackend]:
    pyggml.backend_free()
    found = TestBackend(test_backend)
    yield found
    for name in ("refuse", "fail_score", "fail_init", "fail_alloc", "residual", "foreign"):
        setattr(found.controls, name, 0)
    pyggml.backend_free(force=True)


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """A test closes what it opens, so that the next one starts with nothing open."""
    yield
    from pyggml.resource import open_resources

    left = [repr(one) for one in open_resources()]
    for one in open_resources():
        one.close()
    assert not left, f"left open: {left}"


def run_python(code: str, *arguments: str, timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, with every warning shown."""
    command = [sys.executable, "-X", "faulthandler", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)  # type: ignore[call-overload]
