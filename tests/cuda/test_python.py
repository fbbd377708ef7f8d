"""pyggml itself on the real CUDA backend, on simulated cards: each test runs a function of an `inside_*.py` in a fresh interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import cuda_build
import models
import pytest
from cudasim import CudaSim, Report

HERE = Path(__file__).resolve().parent
PROCESSES = """
import json, sys, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps([[[p.pid, p.usedGpuMemory] for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)] for h in handles]))
"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.llama(tmp_path_factory.mktemp("models"))


class Cards:
    """Two simulated cards, and interpreters that have them."""

    def __init__(self, suite: cuda_build.Suite, state: Path, model: Path) -> None:
        self.sim = CudaSim(suite.cudasim, state, devices=2, verbose=0)
        self.base = {name: value for name, value in os.environ.items() if not name.startswith(("GGML_", "CUDA"))}
        self.base |= {
            "GGML_BACKEND_PATH": str(suite.backend("plain")),
            "GGML_NO_BACKTRACE": "1",
            "MODEL": str(model),
            "OMP_WAIT_POLICY": "passive",
        }

    def start(self, case: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        """`case` is "FILE.FUNCTION" of inside_FILE.py. `options` in lower case are the simulator's switches, those in upper
        case go into the environment as they are.
        """
        switches = {name: value for name, value in options.items() if name.islower()}
        environment = self.base | {name: str(value) for name, value in options.items() if name.isupper()}
        file, function = case.split(".")
        command = [sys.executable, "-W", "error", "-X", "faulthandler", str(HERE / f"inside_{file}.py"), function]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, json.dumps(arguments)],
            env=self.sim.env(environment, **switches),
            text=True,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    def run(self, case: str, *arguments: object, **options: object) -> Report:
        """Run it, which must succeed, and say what is left on the cards."""
        with self.start(case, *arguments, **options) as process:
            try:
                output, errors = process.communicate(timeout=100)
            finally:
                process.kill()
        assert process.returncode == 0, f"{output}\n{errors[-6000:]}"
        return self.sim.report()

    def processes(self) -> list[list[list[int]]]:
        """What NVML tells another process, in its own order of the cards: pid and bytes."""
        done = subprocess.run(
            [sys.executable, "-c", PROCESSES], env=self.sim.env(), capture_output=True, text=True, check=True
        )
        return list(json.loads(done.stdout))


@pytest.fixture
def cards(suite: cuda_build.Suite, tmp_path: Path, model: Path) -> Cards:
    return Cards(suite, tmp_path / "cards", model)


CONFIGURATIONS: dict[str, dict[str, object]] = {
    "one card": {"devices": ["CUDA0"]},
    "two cards": {},
    "two cards, three to one": {"tensor_split": [3, 1]},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_cycle_ends_clean(cards: Cards, model: Path, name: str) -> None:
    report = cards.run("use.cycles", str(model), 3, CONFIGURATIONS[name])
    assert report.clean


@pytest.mark.parametrize("split_mode", ["layer", "tensor"])
def test_a_real_model(cards: Cards, split_mode: str) -> None:
    assert cards.run("use.cycles", str(models.demo_model()), 2, {"split_mode": split_mode}).clean


def test_a_hundred_cycles_do_not_grow(cards: Cards) -> None:
    cards.run("use.many_cycles")


def test_loads_and_frees_of_four_threads(cards: Cards) -> None:
    cards.run("use.threads")


def test_asleep_means_untouched(cards: Cards) -> None:
    report = cards.run("use.untouched")
    assert report.contexts_created == 4
    assert {event.api for event in report.context_events} == {"cudaSetDevice"}


def test_an_open_model_is_in_the_way(cards: Cards) -> None:
    cards.run("use.in_use")


def test_one_of_two_cards_is_given_back(cards: Cards) -> None:
    cards.run("use.one_of_two")


def test_objects_of_the_low_level_are_in_the_way(cards: Cards) -> None:
    cards.run("use.low_level")


@pytest.mark.parametrize("case", ["foreign_before", "foreign_unused", "foreign_after"])
def test_another_user_in_the_same_process(cards: Cards, case: str) -> None:
    cards.run(f"others.{case}")


@pytest.mark.parametrize("initialised", [True, False])
@pytest.mark.parametrize("library", ["torch", "cupy", "jax", "numba"])
def test_a_library_that_uses_a_card_is_asked(cards: Cards, library: str, initialised: bool) -> None:
    cards.run(f"others.{library}", initialised)


def test_a_library_that_cannot_be_asked(cards: Cards) -> None:
    cards.run("others.broken_library", False)


def test_torch_that_is_not_initialised(cards: Cards) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    cards.run("others.real_torch")


@pytest.mark.parametrize("names", [None, ["CUDA0"]])
def test_a_reset_that_fails_is_told(cards: Cards, names: list[str] | None) -> None:
    assert cards.run("failures.failing_reset", names, fail_reset=1).clean


def test_a_lost_card_is_told(cards: Cards) -> None:
    cards.run("failures.lost_device")


@pytest.mark.parametrize("vmm", [1, 0])
def test_no_memory_at_any_allocation(cards: Cards, vmm: int) -> None:
    cards.run("failures.out_of_memory", 60, vmm=vmm)


@pytest.mark.parametrize("size", [200, 301])
def test_a_card_without_room(cards: Cards, size: int) -> None:
    cards.run("failures.no_room", size, memory_mib=size)


def test_another_process_sees_it_gone(cards: Cards) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    with cards.start("use.holds_and_frees") as process:
        try:
            assert process.stdout and process.stdin
            line = process.stdout.readline
            assert line() == "loaded\n"
            for card in cards.processes():
                ((pid, size),) = card
                assert pid == process.pid and size > 300 << 20
            process.stdin.write("\n")
            process.stdin.flush()
            assert line() == "freed\n"
            assert cards.processes() == [[], []]
            process.communicate("\n", timeout=20)
            assert process.returncode == 0
        finally:
            process.kill()
