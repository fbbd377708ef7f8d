"""The low level: everything in the headers is there, and works."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support import UPSTREAM

import pyggml
from pyggml import ffi, lib

# headers, and how many functions each has at least: a test that reads nothing must not pass
HEADERS = {
    "include/llama.h": 200,
    "ggml/include/ggml.h": 300,
    "ggml/include/ggml-alloc.h": 13,
    "ggml/include/ggml-backend.h": 80,
    "ggml/include/gguf.h": 40,
    "tools/mtmd/mtmd.h": 40,
}

# what C cannot call: it returns a std::map
CPLUSPLUS = {"mtmd_get_memory_usage": "pyggml_mtmd_memory_usage"}


def functions(header: Path) -> set[str]:
    """Names that the header declares as part of its interface."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(), flags=re.S)
    return set(re.findall(r"\b(?:LLAMA|GGML|MTMD)_API\b[^;{}()]*?\b((?:llama|ggml|gguf|mtmd)_\w+)\s*\(", text))


@pytest.mark.parametrize("header", HEADERS)
def test_every_function_of_the_header_is_callable(header: str) -> None:
    found = functions(UPSTREAM / header)
    assert len(found) >= HEADERS[header], f"the test no longer reads {header}: {len(found)} functions"
    missing = sorted(name for name in found if not callable(getattr(lib, CPLUSPLUS.get(name, name), None)))
    assert not missing


def test_a_graph_from_python_computes_a_matrix_product() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 64), dtype=np.float32)
    b = rng.standard_normal((7, 64), dtype=np.float32)
    pyggml.devices()
    backend = lib.ggml_backend_init_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU, ffi.NULL)
    context = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})[0])
    try:
        left = lib.ggml_new_tensor_2d(context, lib.GGML_TYPE_F32, 64, 5)
        right = lib.ggml_new_tensor_2d(context, lib.GGML_TYPE_F32, 64, 7)
        product = lib.ggml_mul_mat(context, left, right)
        graph = lib.ggml_new_graph(context)
        lib.ggml_build_forward_expand(graph, product)
        buffer = lib.ggml_backend_alloc_ctx_tensors(context, backend)
        lib.ggml_backend_tensor_set(left, ffi.from_buffer(a), 0, a.nbytes)
        lib.ggml_backend_tensor_set(right, ffi.from_buffer(b), 0, b.nbytes)
        assert lib.ggml_backend_graph_compute(backend, graph) == lib.GGML_STATUS_SUCCESS
        result = np.empty((7, 5), dtype=np.float32)
        lib.ggml_backend_tensor_get(product, ffi.from_buffer(result), 0, result.nbytes)
        lib.ggml_backend_buffer_free(buffer)
    finally:
        lib.ggml_free(context)
        lib.ggml_backend_free(backend)
    np.testing.assert_allclose(result, b @ a.T, rtol=1e-4, atol=1e-4)


def test_structs_by_value_and_constants() -> None:
    params = lib.llama_context_default_params()
    assert params.n_batch == 2048 and params.type_k == lib.GGML_TYPE_F16
    assert lib.GGML_MAX_DIMS == 4
    assert lib.LLAMA_DEFAULT_SEED == 0xFFFFFFFF
    assert lib.LLAMA_TOKEN_NULL == -1


def test_calls_release_the_gil(demo_model: Path) -> None:
    """While one thread decodes, another goes on."""
    with pyggml.Model(demo_model) as model, model.context(n_ctx=1024) as context:
        ticks = []
        done = threading.Event()

        def tick() -> None:
            while not done.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        start = time.perf_counter()
        context.decode(list(range(100, 612)))
        end = time.perf_counter()
        done.set()
        thread.join()
    assert end - start > 0.1
    assert sum(start < one < end for one in ticks) > 10
