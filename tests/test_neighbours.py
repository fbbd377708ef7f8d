"""Others in the process: llama-cpp-python with a llama.cpp of its own, numpy, torch. Nobody is taken for somebody else."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import upstream

PROMPT = "Once upon a time, in a village by the sea,"

# What the scripts below are made of. Everything that they print is one line of JSON.
PREAMBLE = f"""
import ctypes, json, os, re, sys
model = sys.argv[1]
PROMPT = {PROMPT!r}
result = {{}}

def ours():
    with pyggml.Model(model) as loaded, loaded.context(n_ctx=256, n_threads=2) as context:
        generation = context.generate(PROMPT, max_tokens=24, temperature=0.0)
        "".join(generation)
        return generation.tokens

def theirs():
    llama = llama_cpp.Llama(model, n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False)
    tokens = []
    for token in llama.generate(llama.tokenize(PROMPT.encode()), temp=0.0):
        tokens.append(token)
        if len(tokens) == 24:
            break
    llama.close()
    return tokens

def mapped():
    names = set(re.findall(r"/([^/\\n]+\\.so[.\\d]*)$", open("/proc/self/maps").read(), re.M))
    return sorted(one for one in names if re.match("lib(py)?(ggml|llama)", one))
"""
END = "\nprint(json.dumps(result))\n"
# as another package would do it that wants its symbols seen
GLOBAL = """
for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so", "libllama.so"):
    ctypes.CDLL(os.path.join(os.environ["LLAMA_CPP_LIB_PATH"], name), ctypes.RTLD_GLOBAL)
"""


def run(code: str, model: Path, *, llama_cpp: bool = True) -> Any:
    """Run a script of the above in a process of its own; what it put into `result`."""
    environment = dict(os.environ)
    if llama_cpp:
        place, told = upstream.python_package()
        environment |= {**told, "PYTHONPATH": str(place)}
    command = [sys.executable, "-X", "faulthandler", "-c", PREAMBLE + code + END, str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def alone(who: str, model: Path) -> list[int]:
    """What each answers in a process where the other is not."""
    package = {"ours": "pyggml", "theirs": "llama_cpp"}[who]
    told = run(
        f"import {package}\nresult['answer'] = {who}()\nresult['mapped'] = mapped()", model, llama_cpp=who == "theirs"
    )
    assert told["mapped"] and not [one for one in told["mapped"] if ("pyggml" in one) != (who == "ours")]
    assert len(set(told["answer"])) >= 16
    return list(told["answer"])


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_llama_cpp_python_in_the_same_process(order: str, scope: str, demo_model: Path) -> None:
    imports = ["import pyggml", (GLOBAL if scope == "global" else "") + "import llama_cpp"]
    calls = ["result['ours'] = ours()", "result['theirs'] = theirs()"]
    if order == "theirs first":
        imports.reverse()
        calls.reverse()
    told = run("\n".join([*imports, *calls, "result['mapped'] = mapped()"]), demo_model)
    assert any(one.startswith("libllama.so") for one in told["mapped"]) and "libpyggml-llama.so" in told["mapped"]
    assert told["ours"] == alone("ours", demo_model)
    assert told["theirs"] == alone("theirs", demo_model)


def test_our_backend_free_is_not_theirs(demo_model: Path) -> None:
    """While a model of theirs is open, ours are freed and come back; their registry keeps what it had."""
    code = """
import llama_cpp, pyggml
registry = ctypes.CDLL(os.path.join(os.environ["LLAMA_CPP_LIB_PATH"], "libggml.so"))
open_model = llama_cpp.Llama(model, n_ctx=256, verbose=False)
result["ours"] = ours()
result["before"] = registry.ggml_backend_reg_count(), pyggml.lib.ggml_backend_reg_count()
pyggml.backend_free()
result["after"] = registry.ggml_backend_reg_count(), pyggml.lib.ggml_backend_reg_count()
result["theirs"] = theirs()
result["open"] = open_model.create_completion(PROMPT, max_tokens=1, temperature=0.0)["usage"]["completion_tokens"]
result["ours again"] = ours()
open_model.close()
llama_cpp.llama_backend_free()
result["ours, theirs freed"] = ours()
"""
    told = run(code, demo_model)
    theirs_before, ours_before = told["before"]
    assert theirs_before > 0 and ours_before > 0
    assert told["after"] == [theirs_before, 0]
    assert told["theirs"] == alone("theirs", demo_model)
    assert told["open"] == 1
    assert told["ours"] == told["ours again"] == told["ours, theirs freed"] == alone("ours", demo_model)


# The sum over a product of matrices of small whole numbers, which is exact in doubles whatever the order of the additions.
PRODUCTS = {
    "numpy": """
import numpy
def product():
    a = (numpy.arange(90000) % 7).astype("float64").reshape(300, 300)
    return int((a @ a).sum())
""",
    "torch": """
import torch
def product():
    a = (torch.arange(90000) % 7).double().reshape(300, 300)
    return int((a @ a).sum())
""",
}


def expected_product() -> int:
    rows = [[(300 * i + j) % 7 for j in range(300)] for i in range(300)]
    return sum(sum(row[k] for row in rows) * sum(rows[k]) for k in range(300))


@pytest.mark.parametrize("package", PRODUCTS)
@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_numerics_packages_compute_the_same_beside_us(order: str, package: str, demo_model: Path) -> None:
    """They bring BLAS and OpenMP along, and we use OpenMP, too."""
    pytest.importorskip(package)
    steps = ["import pyggml\nresult['ours'] = [ours()]", PRODUCTS[package] + "result['product'] = [product()]"]
    if order == "theirs first":
        steps.reverse()
    steps += ["result['ours'].append(ours())", "result['product'].append(product())", "pyggml.backend_free()"]
    steps += ["result['product'].append(product())", "result['ours'].append(ours())"]
    told = run("\n".join(steps), demo_model, llama_cpp=False)
    assert told["product"] == [expected_product()] * 3
    assert told["ours"] == [alone("ours", demo_model)] * 3
