"""The suite on the real CUDA backend with the simulated CUDA below it: all that it shows, it shows for a simulated GPU."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import cuda_build  # noqa: E402
import models  # noqa: E402
from cuda_suite import Outcome, Run, run_driver  # noqa: E402


@pytest.fixture(scope="session")
def suite() -> cuda_build.Suite:
    directory = os.environ.get("PYGGML_CUDA_SUITE")  # built before, by cuda_build.py --directory
    try:
        return cuda_build.built(Path(directory)) if directory else cuda_build.build()
    except cuda_build.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def run(suite: cuda_build.Suite, tmp_path: Path) -> Run:
    """``run("cycle", "3", flavour="plain", devices=2, GGML_CUDA_P2P=1)``: see `run_driver`."""
    cards = (tmp_path / f"card-{n}" for n in itertools.count())

    def start(
        *command: str, flavour: str = "plain", status: int = 0, timeout: float = 300, **options: object
    ) -> Outcome:
        common = {"model": models.demo_model(), "flavour": flavour, "status": status, "timeout": timeout}
        return run_driver(suite, next(cards), list(command), options=options, **common)

    return start
