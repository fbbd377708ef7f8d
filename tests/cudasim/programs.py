"""Runs programs on simulated cards: Python code that calls the libraries through :mod:`driver`, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from cudasim import CudaSim, Report

HERE = Path(__file__).parent


def popen(sim: CudaSim, code: str, env: dict[str, str] | None = None, /, **options: object) -> subprocess.Popen[str]:
    """Starts the code; ``options`` are more switches of the simulator."""
    source = f"import os, sys\nsys.path.insert(0, {str(HERE)!r})\nfrom driver import *\n{textwrap.dedent(code)}"
    environment = {**sim.env(**options), **(env or {})}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", source]
    return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def run(sim: CudaSim, code: str, env: dict[str, str] | None = None, /, **options: object) -> Report:
    """Runs the code, which must succeed, and returns what is left afterwards."""
    process = popen(sim, code, env, **options)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    return sim.report()


class Held:
    """A program that stops where it calls ``pause()`` (and at its end), and goes on when it is told to."""

    def __init__(self, sim: CudaSim, code: str, **options: object) -> None:
        pause = "def pause():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
        self.process = popen(sim, f"{pause}{textwrap.dedent(code)}\npause()\n", **options)
        self._until_ready()

    def _until_ready(self) -> None:
        assert self.process.stdout and self.process.stderr
        line = self.process.stdout.readline()
        assert line == "ready\n", line + self.process.stderr.read()

    def go_on(self) -> None:
        """To the next ``pause()``."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._until_ready()

    def end(self) -> None:
        self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
