"""What the tests share: the demo model, tiny models, and a backend of our own that can be watched."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import BUILD, LIB, ROOT, UPSTREAM, TestBackend

import pyggml
from pyggml.demo import model_path

# a job in the background starts with Ctrl+C ignored, and so would every process that a test starts and interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture
def backend(test_backend: Path) -> Iterator[TestBackend]:
    pyggml.backend_free()
    found = TestBackend(test_backend)
    yield found
    found.leave()


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """A test closes what it opens, so that the next one starts with nothing open."""
    yield
    from pyggml.resource import open_resources

    left = [repr(one) for one in open_resources()]
    for one in open_resources():
        one.close()
    assert not left, f"left open: {left}"
