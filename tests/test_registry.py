"""The registry: a backend that is freed, goes out of sight, and comes back in the same process.

Shown with the backend of tests/testbackend.cpp, through the real ggml_backend_load().
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support import LIB, ROOT, UPSTREAM, TestBackend, run_python

import pyggml
from pyggml import ffi, lib


def names() -> list[str]:
    return [
        ffi.string(lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(i))).decode()
        for i in range(lib.ggml_backend_reg_count())
    ]


def device_names() -> list[str]:
    return [
        ffi.string(lib.ggml_backend_dev_name(lib.ggml_backend_dev_get(i))).decode()
        for i in range(lib.ggml_backend_dev_count())
    ]


def test_unload_calls_the_hook_and_hides_the_backend(backend: TestBackend) -> None:
    calls = backend.controls.hook_calls
    assert names() == ["TEST"]
    assert device_names() == ["TEST0", "TEST1"]
    assert lib.ggml_backend_unload(backend.reg)
    assert backend.controls.hook_calls == calls + 1
    assert backend.controls.hook_device == -1
    assert names() == [] and device_names() == []
    assert not lib.ggml_backend_reg_by_name(b"TEST")
    assert not backend.device("TEST0")
    assert lib.ggml_backend_unloaded_count() >= 1


def test_unload_twice_calls_the_hook_once(backend: TestBackend) -> None:
    assert lib.ggml_backend_unload(backend.reg)
    calls = backend.controls.hook_calls
    assert lib.ggml_backend_unload(backend.reg)
    assert backend.controls.hook_calls == calls


@pytest.mark.parametrize("way", ["load", "register", "load_all"])
def test_coming_back_reuses_entry_and_devices(backend: TestBackend, way: str) -> None:
    devices = [backend.device("TEST0"), backend.device("TEST1")]
    lib.ggml_backend_unload(backend.reg)
    counted = backend.controls.counted
    if way == "load":
        assert backend.load() == backend.reg
    elif way == "register":
        lib.ggml_backend_register(backend.reg)
    else:
        lib.ggml_backend_load_all()
    assert lib.ggml_backend_reg_by_name(b"TEST") == backend.reg
    assert [backend.device("TEST0"), backend.device("TEST1")] == devices
    assert backend.controls.counted == counted, "the backend was asked for its devices"


def test_coming_back_takes_the_old_place(backend: TestBackend) -> None:
    lib.ggml_backend_load_all()
    before = names(), device_names()
    assert len(before[0]) >= 2
    lib.ggml_backend_unload(backend.reg)
    assert "TEST" not in names()
    backend.load()
    assert (names(), device_names()) == before


def test_refusal_changes_nothing(backend: TestBackend) -> None:
    lib.ggml_backend_load_all()
    before = names(), device_names()
    backend.controls.refuse = 1
    assert not lib.ggml_backend_unload(backend.reg)
    assert (names(), device_names()) == before
    backend.controls.refuse = 0
    assert lib.ggml_backend_unload(backend.reg)


def test_refused_while_objects_live(backend: TestBackend) -> None:
    lib.ggml_backend_load_all()  # it lets the CPU compute
    opened = lib.ggml_backend_dev_init(backend.device("TEST0"), ffi.NULL)
    assert backend.controls.backends[0] == 1
    assert not lib.ggml_backend_unload(backend.reg)
    assert lib.ggml_backend_reg_by_name(b"TEST") == backend.reg
    lib.ggml_backend_free(opened)
    buffer = lib.ggml_backend_buft_alloc_buffer(lib.ggml_backend_dev_buffer_type(backend.device("TEST1")), 4096)
    assert not lib.ggml_backend_unload(backend.reg)
    lib.ggml_backend_buffer_free(buffer)
    assert lib.ggml_backend_unload(backend.reg)


def test_one_device_is_given_back_while_the_other_is_used(backend: TestBackend) -> None:
    lib.ggml_backend_load_all()
    generations = list(backend.controls.generation)
    opened = lib.ggml_backend_dev_init(backend.device("TEST1"), ffi.NULL)
    assert lib.ggml_backend_dev_free(backend.device("TEST0"))
    assert not lib.ggml_backend_dev_free(backend.device("TEST1"))
    assert list(backend.controls.generation) == [generations[0] + 1, generations[1]]
    assert {"TEST0", "TEST1"} <= set(device_names())
    lib.ggml_backend_free(opened)


def test_a_backend_that_does_not_come_back_stays_away(backend: TestBackend) -> None:
    lib.ggml_backend_unload(backend.reg)
    backend.controls.fail_score = 1
    assert not backend.load()
    lib.ggml_backend_load_all()
    assert "TEST" not in names()
    backend.controls.fail_score = 0
    assert backend.load() == backend.reg


def test_backend_free_and_init_take_and_bring_all(backend: TestBackend) -> None:
    lib.llama_backend_init()
    before = names(), device_names()
    assert "CPU" in before[0] and "TEST" in before[0]
    lib.llama_backend_free()
    assert names() == [] and device_names() == []
    lib.llama_backend_init()
    assert (names(), device_names()) == before


def test_a_refusing_backend_does_not_hold_the_others(backend: TestBackend) -> None:
    lib.llama_backend_init()
    backend.controls.refuse = 1
    lib.llama_backend_free()
    assert names() == ["TEST"]


def test_the_library_is_never_closed(backend: TestBackend) -> None:
    for _ in range(20):
        lib.ggml_backend_unload(backend.reg)
        assert str(backend.path) in Path("/proc/self/maps").read_text()
        assert backend.load() == backend.reg


def test_api_version_is_ours(backend: TestBackend, tmp_path: Path) -> None:
    """A module that was built for upstream's interface is not loaded."""
    import subprocess

    source = tmp_path / "foreign.cpp"
    source.write_text(
        '#include "ggml-backend-impl.h"\n'
        "static ggml_backend_reg reg;\n"
        'extern "C" ggml_backend_reg_t ggml_backend_init(void) { reg.api_version = GGML_BACKEND_API_VERSION_UPSTREAM; return &reg; }\n'
    )
    module = tmp_path / "libpyggml-foreign.so"
    includes = [
        f"-I{one}" for one in (UPSTREAM / "ggml/include", UPSTREAM / "ggml/src", ROOT / "vendor/llama.cpp/overlay/ggml")
    ]
    subprocess.run(["c++", "-shared", "-fPIC", *includes, str(source), "-o", str(module)], check=True)
    with pyggml.log.captured() as lines:
        assert not lib.ggml_backend_load(bytes(module))
    assert "incompatible API version" in " ".join(lines)


def test_backends_are_only_looked_for_beside_the_library(test_backend: Path, tmp_path: Path) -> None:
    """Not in the current directory and not beside the interpreter, where anybody might have put one."""
    (tmp_path / "libpyggml-cuda.so").symlink_to(test_backend)
    code = "import pyggml; pyggml.devices(); print([d.name for d in pyggml.devices()])"
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "TEST" not in done.stdout and "CPU" in done.stdout
    assert not (LIB / "libpyggml-test.so").exists()


def test_loads_and_unloads_of_many_threads(backend: TestBackend) -> None:
    """Whoever counts and gets under the shared lock never meets a hole; nobody waits for ever."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def reader() -> None:
        while not stop.is_set():
            lib.ggml_backend_lifecycle_lock_shared()
            try:
                count = lib.ggml_backend_dev_count()
                assert all(lib.ggml_backend_dev_get(i) for i in range(count))
            except BaseException as error:
                problems.append(error)
            finally:
                lib.ggml_backend_lifecycle_unlock_shared()

    def loader() -> None:
        while not stop.is_set():
            backend.load()

    def unloader() -> None:
        for _ in range(300):
            lib.ggml_backend_unload(backend.reg)
        stop.set()

    threads = [threading.Thread(target=target) for target in (reader, reader, loader, loader, unloader)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not problems
    assert backend.load() == backend.reg


def test_nothing_is_unloaded_from_within_a_load(backend: TestBackend) -> None:
    lib.ggml_backend_lifecycle_lock_shared()
    try:
        assert not lib.ggml_backend_unload(backend.reg)
    finally:
        lib.ggml_backend_lifecycle_unlock_shared()
    assert lib.ggml_backend_unload(backend.reg)
