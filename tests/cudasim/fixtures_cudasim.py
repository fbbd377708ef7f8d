"""Fixtures of these tests: built libraries, fresh cards, programs that end with the test.

The tests load it as a plugin: a ``conftest`` of this folder would hide those of others from whoever imports from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cudasim import CudaSim, build
from programs import Held


@pytest.fixture(scope="session")
def library_dir() -> Path:
    return build()


@pytest.fixture
def sim(library_dir: Path, tmp_path: Path) -> CudaSim:
    """One fresh card."""
    return CudaSim(library_dir, tmp_path / "card", verbose=0)


@pytest.fixture
def hold(sim: CudaSim) -> Iterator[Callable[..., Held]]:
    """Starts a program that stays until the test ends it."""
    programs: list[Held] = []

    def start(code: str, **options: object) -> Held:
        programs.append(Held(sim, code, **options))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.returncode is None:
            program.kill()
