"""Several processes on one card: what each sees, what is left of one that ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cudasim import CudaSim
from programs import Held, popen, run

pytest_plugins = ["fixtures_cudasim"]

MIB = 1 << 20
CONTEXT = 300 * MIB


def test_processes_share_a_card(sim: CudaSim, hold: Callable[..., Held]) -> None:
    options = {"memory_mib": 1024}
    program = hold("malloc(300 << 20)", **options)
    run(sim, "assert free_bytes() == 124 << 20 and try_malloc(200 << 20) == OUT_OF_MEMORY", **options)
    device = sim.report().devices[0]
    assert [(p.pid, p.bytes) for p in device.processes] == [(program.process.pid, 600 * MIB)]
    program.end()
    assert sim.report().bytes == 0
    run(sim, "assert try_malloc(700 << 20) == OK", **options)


def test_occupied_memory_is_missed_elsewhere(sim: CudaSim) -> None:
    with sim.occupy(8000 * MIB - CONTEXT) as pid:
        assert sim.report().devices[0].processes[0].pid == pid
        run(sim, "assert try_malloc(1) == OUT_OF_MEMORY and not active(), 'not even a context fits'")
        with pytest.raises(MemoryError), sim.occupy(1):
            pass
    assert sim.report().bytes == 0
    run(sim, "assert try_malloc(1) == OK")


def test_killed_process_leaves_nothing(sim: CudaSim, hold: Callable[..., Held]) -> None:
    program = hold("malloc(300 << 20)")
    assert sim.report().bytes == 600 * MIB
    program.kill()
    report = sim.report()
    assert (report.bytes, report.contexts, report.live, report.devices[0].processes) == (0, 0, {}, ())


def test_program_that_replaces_itself_leaves_nothing(sim: CudaSim, hold: Callable[..., Held]) -> None:
    other = "print('ready', flush=True); input()"
    program = hold(f"malloc(1); os.execv(sys.executable, [sys.executable, '-c', {other!r}])")
    assert program.process.poll() is None
    assert (sim.report().bytes, sim.report().contexts_created) == (0, 1)


def test_fork_cannot_use_its_parents_context_and_does_not_keep_it(sim: CudaSim, hold: Callable[..., Held]) -> None:
    code = """
    malloc(1)
    if not os.fork():
        assert try_malloc(1) == NOT_INITIALIZED
        pause(); os._exit(0)
    os.wait()
    """
    program = hold(code)
    assert sim.report().contexts == 1
    program.process.kill()
    program.process.wait()
    assert sim.report().bytes == 0, "the child is still there, the parent's context is not"
    program.kill()


def test_many_processes_keep_the_books(sim: CudaSim) -> None:
    code = """
    for _ in range(40):
        p = [malloc(1 << 20) for _ in range(3)]; s = stream()
        for q in p: assert rt.cudaFree(c_void_p(q)) == OK
        assert rt.cudaStreamDestroy(c_void_p(s)) == OK
        rt.cudaDeviceReset()
    assert not active()
    """
    processes = [popen(sim, code) for _ in range(6)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    report = sim.report()
    assert report.clean
    assert report.contexts_created == 6 * 40
