"""backend_free(): what is given back, what is in the way, and that everything comes back by itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support import TestBackend

import pyggml
from pyggml import BackendInUseError, Verdict, ffi, lib


def answer(path: Path, **options: object) -> str:
    with pyggml.Model(path, **options) as model, model.context(n_ctx=256) as context:
        return "".join(context.generate("Once upon a time", max_tokens=12, temperature=0.0))


def test_cpu_comes_back_with_the_same_answer(demo_model: Path) -> None:
    first = answer(demo_model)
    report = pyggml.backend_free()
    cpu = {one.device: one for one in report.devices}["CPU"]
    assert cpu.verdict is Verdict.UNLOADED
    assert cpu.source == "/proc" and cpu.held_after is not None and cpu.held_after > 0
    assert report.released and "CPU" in str(report)
    assert lib.ggml_backend_reg_count() == 0
    assert answer(demo_model) == first


def test_idempotent() -> None:
    pyggml.devices()
    assert pyggml.backend_free().devices
    assert pyggml.backend_free().devices == ()
    assert pyggml.backend_free(devices=["CPU"]).devices == ()


def test_a_model_on_the_device_is_given_back(backend: TestBackend, demo_model: Path) -> None:
    on_device = answer(demo_model, devices=["TEST0"])
    assert backend.controls.buffers_made[0] > 0 and backend.controls.active[0] == 1
    report = pyggml.backend_free()
    by_name = {one.device: one for one in report.devices}
    assert by_name["TEST0"].verdict is Verdict.RELEASED
    assert by_name["TEST0"].held_after == 0 and by_name["TEST0"].context_active is False
    assert list(backend.controls.active) == [0, 0]
    assert answer(demo_model, devices=["TEST0"]) == on_device


def test_what_is_left_is_said(backend: TestBackend) -> None:
    lib.ggml_backend_load_all()
    backend.controls.residual = 4096
    report = pyggml.backend_free()
    left = {one.device: one for one in report.devices}["TEST1"]
    assert left.verdict is Verdict.RESIDUAL and left.held_after == 4096
    assert not report.released


def test_in_use_names_what_is_open(backend: TestBackend, demo_model: Path) -> None:
    with pyggml.Model(demo_model, devices=["TEST0"]) as model, model.context(n_ctx=64):
        calls = backend.controls.hook_calls
        with pytest.raises(BackendInUseError) as caught:
            pyggml.backend_free()
        assert len(caught.value.holders) == 2
        assert all(str(demo_model) in holder for holder in caught.value.holders)
        assert backend.controls.hook_calls == calls, "the backend was touched"


def test_a_cpu_model_counts_too(demo_model: Path) -> None:
    with pyggml.Model(demo_model, n_gpu_layers=0), pytest.raises(BackendInUseError):
        pyggml.backend_free()


def test_force_closes_first(backend: TestBackend, demo_model: Path) -> None:
    model = pyggml.Model(demo_model, devices=["TEST0"])
    context = model.context(n_ctx=64)
    report = pyggml.backend_free(force=True)
    assert model.closed and context.closed
    assert report.released
    assert backend.controls.buffers[0] == 0


def test_one_device(backend: TestBackend, demo_model: Path) -> None:
    with pyggml.Model(demo_model, devices=["TEST1"]) as model:
        generations = list(backend.controls.generation)
        report = pyggml.backend_free(devices=["TEST0"])
        assert [one.device for one in report.devices] == ["TEST0"]
        assert list(backend.controls.generation) == [generations[0] + 1, generations[1]]
        with pytest.raises(BackendInUseError, match="open"):
            pyggml.backend_free(devices=["TEST1"])
        pyggml.backend_free(devices=["TEST1"], force=True)
        assert model.closed
    assert backend.controls.generation[1] == generations[1] + 1


def test_objects_made_at_the_low_level_are_refused_too(backend: TestBackend) -> None:
    lib.ggml_backend_load_all()
    opened = lib.ggml_backend_dev_init(backend.device("TEST0"), ffi.NULL)
    with pytest.raises(BackendInUseError, match="TEST"):
        pyggml.backend_free()
    lib.ggml_backend_free(opened)
    assert pyggml.backend_free().released


def test_unknown_device_is_named() -> None:
    pyggml.devices()
    with pytest.raises(ValueError, match=r"'CUDA7'.*CPU"):
        pyggml.backend_free(devices=["CUDA7"])
    with pytest.raises(TypeError):
        pyggml.backend_free(devices="CPU")


def test_a_device_that_does_not_come_back_is_an_error_and_not_the_end(backend: TestBackend, demo_model: Path) -> None:
    before = answer(demo_model, devices=["TEST0"])
    pyggml.backend_free()
    backend.controls.fail_alloc = 1
    with pytest.raises(pyggml.PyggmlError):
        pyggml.Model(demo_model, devices=["TEST0"])
    backend.controls.fail_alloc = 0
    backend.controls.fail_init = 1
    with pytest.raises(pyggml.PyggmlError), pyggml.Model(demo_model, devices=["TEST0"]) as model:
        model.context(n_ctx=64)
    backend.controls.fail_init = 0
    assert list(backend.controls.buffers) == [0, 0] and list(backend.controls.backends) == [0, 0]
    assert pyggml.backend_free().released
    assert answer(demo_model, devices=["TEST0"]) == before


def test_loads_and_frees_of_many_threads(demo_model: Path) -> None:
    """Every load works, every free works or says what is in use; nothing hangs."""
    expected = answer(demo_model)
    answers: list[str] = []
    problems: list[BaseException] = []
    refused = freed = 0

    def use() -> None:
        try:
            answers.extend(answer(demo_model) for _ in range(4))
        except BaseException as error:
            problems.append(error)

    users = [threading.Thread(target=use) for _ in range(3)]
    for thread in users:
        thread.start()
    while any(thread.is_alive() for thread in users):
        try:
            pyggml.backend_free()
            freed += 1
        except BackendInUseError:
            refused += 1
        users[0].join(0.002)
    assert not problems
    assert answers == [expected] * 12
    assert refused > 0


def test_force_ends_a_generation_of_another_thread(demo_model: Path) -> None:
    model = pyggml.Model(demo_model)
    context = model.context(n_ctx=2048)
    started = threading.Event()
    outcome: list[BaseException] = []

    def generate() -> None:
        try:
            for _ in context.generate("One, two, three,", max_tokens=1500, temperature=0.0):
                started.set()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    assert started.wait(20)
    pyggml.backend_free(force=True)
    thread.join(10)
    assert not thread.is_alive()
    assert len(outcome) == 1 and isinstance(outcome[0], pyggml.AbortedError | pyggml.ClosedError)


def test_from_within_a_load(demo_model: Path) -> None:
    seen: list[BaseException] = []

    def progress(_: float) -> None:
        for force in (False, True):
            with pytest.raises(BackendInUseError) as caught:
                pyggml.backend_free(force=force)
            seen.append(caught.value)

    pyggml.Model(demo_model, progress=progress).close()
    assert seen
