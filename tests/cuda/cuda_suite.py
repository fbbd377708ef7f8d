"""Runs the drivers of the CUDA suite on simulated cards and gives their lines to the tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_build
from cudasim import CudaSim, Report

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a driver ended: its lines, what it logged, and what it left on the cards."""

    rows: list[Row]
    log: str
    after: Report

    def at(self, label: str) -> list[Row]:
        return [row for row in self.rows if row["at"] == label]

    def one(self, label: str) -> Row:
        (row,) = self.at(label)
        return row


Run = Callable[..., Outcome]


def run_driver(
    suite: cuda_build.Suite,
    card_file: Path,
    command: list[str],
    *,
    model: Path,
    flavour: str,
    status: int,
    timeout: float,
    options: Mapping[str, object],
) -> Outcome:
    """Options in lower case are the simulator's switches, those in upper case go into the environment as they are."""
    card = CudaSim(suite.cudasim, card_file, **{name: value for name, value in options.items() if name.islower()})
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GGML_", "CUDA"))}
    environment |= {name: str(value) for name, value in options.items() if name.isupper()}
    environment["GGML_NO_BACKTRACE"] = "1"
    program, *arguments = command
    files = [suite.backend(flavour)] if program == "ops" else [suite.backend(flavour), model]
    done = subprocess.run(
        [suite.program(program), *map(str, files), *arguments],
        env=card.env(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == status, f"{command} ended with {done.returncode}\n{done.stderr[-4000:]}"
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Outcome(rows, done.stderr, card.report())


def assert_clean(report: Row) -> None:
    """Nothing lives, no byte is held, no context exists and nothing stale or wrong was ever used."""
    assert report["stale"] == {} and report["misuse"] == {}
    assert report["live"] == {} and report["bytes"] == 0 and report["contexts"] == 0
