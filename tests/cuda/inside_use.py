"""A program that uses cards and gives them back: cycles, asleep, in use. Run by `test_python.py`."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import threading
from typing import Any

from inside import MIB, MODEL, NAMES, answer, assert_clean, assert_released, core, refused, report, run, used

import pyggml
import pyggml.cli
from pyggml import BackendInUseError, ffi, lib

# -- cycles ----------------------------------------------------------------------------------------------------------------


def cycles(path: str, count: int, options: dict[str, Any]) -> None:
    traces = set()
    for _ in range(count):
        core.cudasim_trace_reset()
        answer(path=path, **options)
        assert report()["contexts"] > 0 and core.cudasim_trace_launches() > 20
        traces.add(core.cudasim_trace_hash())
        assert_released(pyggml.backend_free())
        assert_clean()
    assert len(traces) == 1, "the cycles launched other kernels"
    created = {(one["device"], one["generation"]) for one in report()["context_events"]}
    assert created == set(itertools.product(range(len(options.get("devices", NAMES))), range(1, count + 1)))


def many_cycles() -> None:
    answer(1)
    pyggml.backend_free()
    resident = []
    for cycle in range(100):
        answer(1)
        assert_released(pyggml.backend_free())
        assert_clean()
        if cycle in (49, 99):
            resident.append(pyggml.memory.host().own or 0)
    assert resident[1] - resident[0] < 2 * MIB, resident


def threads() -> None:
    """Loads and frees of four threads: each works, or says what is in use."""
    problems: list[BaseException] = []
    counts = {"answered": 0, "freed": 0, "refused": 0}

    def use() -> None:
        try:
            for _ in range(15):
                answer(2)
                counts["answered"] += 1
        except BaseException as error:
            problems.append(error)

    def free() -> None:
        try:
            while users[0].is_alive() or users[1].is_alive():
                try:
                    assert pyggml.backend_free().released
                    counts["freed"] += 1
                except BackendInUseError:
                    counts["refused"] += 1
                users[0].join(0.001)
        except BaseException as error:
            problems.append(error)

    users = [threading.Thread(target=use) for _ in range(2)]
    everybody = [*users, *(threading.Thread(target=free) for _ in range(2))]
    for thread in everybody:
        thread.start()
    for thread in everybody:
        thread.join(50)
        assert not thread.is_alive(), f"it hangs: {counts}"
    assert not problems, problems
    assert counts["answered"] == 30 and counts["refused"] > 0, counts
    pyggml.backend_free()
    assert_clean()


def holds_and_frees() -> None:
    """A line on standard output when a model is loaded, and one when it is given back; each waits for one on standard input."""
    with pyggml.Model(MODEL):
        print("loaded", flush=True)
        sys.stdin.readline()
    assert_released(pyggml.backend_free())
    print("freed", flush=True)
    sys.stdin.readline()


# -- asleep means untouched ------------------------------------------------------------------------------------------------


def look() -> None:
    """Everything that only looks."""
    assert [one.name for one in pyggml.devices() if one.backend == "CUDA"] == NAMES
    found = {one.device: one for one in pyggml.memory.devices()}
    for name in NAMES:
        assert found[name].total and found[name].context_active is False, found[name]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert pyggml.cli.main(["info"]) == 0
        assert pyggml.cli.main(["info", "--json"]) == 0
    assert "CUDA1" in text.getvalue()
    lib.llama_backend_init()


def untouched() -> None:
    look()
    assert report()["contexts_created"] == 0, report()["context_events"]
    for cycle in range(1, 3):
        answer()
        pyggml.backend_free()
        assert pyggml.memory.devices() == []
        look()
        assert report()["contexts_created"] == 2 * cycle, report()["context_events"]
        assert_clean()
        pyggml.backend_free()
        assert_clean()


# -- in use ----------------------------------------------------------------------------------------------------------------


def in_use() -> None:
    with pyggml.Model(MODEL) as model, model.context(n_ctx=128) as context:
        error = refused(BackendInUseError, MODEL)
        assert isinstance(error, BackendInUseError) and len(error.holders) == 2
        refused(BackendInUseError, MODEL, devices=["CUDA1"])
        assert "".join(context.generate("It goes on", max_tokens=2)) is not None
        assert_released(pyggml.backend_free(force=True))
        assert model.closed and context.closed
        assert_clean()
    answer()
    assert_released(pyggml.backend_free())


def one_of_two() -> None:
    with pyggml.Model(MODEL, devices=["CUDA0"]) as model, model.context(n_ctx=128) as context:
        answer(devices=["CUDA1"])
        assert used(0) > 0 and used(1) > 0
        freed = pyggml.backend_free(devices=["CUDA1"])
        assert [one.device for one in freed.devices] == ["CUDA1"]
        assert_released(freed)
        assert used(0) > 0 and used(1) == 0
        for _ in context.generate("It goes on", max_tokens=2):
            pass
        assert used(1) == 0, "the sleeping card was touched"
        refused(BackendInUseError, MODEL, devices=["CUDA0"])
        answer(devices=["CUDA1"])  # comes back by itself
        assert_released(pyggml.backend_free(devices=["CUDA0"], force=True))
        assert model.closed and used(0) == 0 and used(1) > 0
    assert_released(pyggml.backend_free())
    assert_clean()


def low_level() -> None:
    pyggml.devices()
    device = lib.ggml_backend_dev_by_name(b"CUDA0")
    opened = lib.ggml_backend_dev_init(device, ffi.NULL)
    refused(BackendInUseError, "CUDA", "1 backend")
    refused(BackendInUseError, "CUDA0", "1 backend", devices=["CUDA0"])
    refused(BackendInUseError, "CUDA", "1 backend", force=True)  # not ours to close
    lib.ggml_backend_free(opened)
    buffer = lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_dev_buffer_type(device), 4096)
    refused(BackendInUseError, "CUDA", "1 device buffer")
    lib.ggml_backend_buffer_free(buffer)
    assert_released(pyggml.backend_free())
    assert_clean()


if __name__ == "__main__":
    run(globals())
