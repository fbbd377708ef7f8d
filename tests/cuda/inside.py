"""What the `inside_*.py` share: each of their functions has a fresh interpreter to itself, with simulated cards and the real CUDA backend.

They use pyggml as a program would, and ask the simulator what is on the cards.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import c_size_t
from typing import Any

import pyggml
from pyggml import PyggmlError, Verdict

MODEL = os.environ.get("MODEL", "")
MIB = 1 << 20
NAMES = ["CUDA0", "CUDA1"]

core = ctypes.CDLL("libcudasim.so")
core.cudasim_report.restype = c_size_t
core.cudasim_trace_hash.restype = core.cudasim_trace_launches.restype = ctypes.c_ulonglong


def report() -> dict[str, Any]:
    buffer = ctypes.create_string_buffer(core.cudasim_report(None, c_size_t(0)) + 4096)
    core.cudasim_report(buffer, c_size_t(len(buffer)))
    return dict(json.loads(buffer.value))


def used(device: int) -> int:
    """Bytes on a card, of everybody."""
    return int(report()["devices"][device]["used"])


def assert_clean() -> None:
    left = {key: value for key, value in report().items() if key in ("bytes", "contexts", "live", "stale", "misuse")}
    assert not any(left.values()), left


def answer(tokens: int = 4, path: str = MODEL, **options: Any) -> str:
    with pyggml.Model(path, **options) as model, model.context(n_ctx=512) as context:
        return "".join(context.generate("Once upon a time there was", max_tokens=tokens, temperature=0.0))


def on_cards(freed: pyggml.ReleaseReport) -> dict[str, pyggml.DeviceRelease]:
    return {one.device: one for one in freed.devices if one.backend == "CUDA"}


def assert_released(freed: pyggml.ReleaseReport) -> None:
    assert freed.released and on_cards(freed), freed
    for one in on_cards(freed).values():
        assert (one.verdict, one.context_active, one.error) == (Verdict.RELEASED, False, 0), one


def refused(kind: type[PyggmlError], *words: str, **options: Any) -> PyggmlError:
    """backend_free() raises this, with these words, and changes nothing on the cards."""
    before = report()
    try:
        freed = pyggml.backend_free(**options)
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        assert report() == before
        return error
    raise AssertionError(f"freed: {freed}")


def run(functions: dict[str, Any]) -> None:
    """Call the function that the command line names, with its arguments in JSON."""
    functions[sys.argv[1]](*json.loads(sys.argv[2]))
