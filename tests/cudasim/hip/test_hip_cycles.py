"""The HIP flavour of the teardown, run: real ggml-hip, host code only, on the simulated HIP. No AMD card was involved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
import hip_suite
import models
from cudasim import CudaSim

MIB = 1 << 20
RESIDUAL = 174 * MIB


@pytest.fixture(scope="module")
def suite() -> hip_suite.HipSuite:
    directory = os.environ.get("PYGGML_HIP_SUITE")
    try:
        return hip_suite.built(Path(directory)) if directory else hip_suite.build()
    except hip_suite.Unavailable as reason:
        pytest.skip(str(reason))


def cycles(suite: hip_suite.HipSuite, card: Path, *arguments: str, **options: object) -> list[dict[str, Any]]:
    """Three times load, generate, close, give back; the driver's lines."""
    sim = CudaSim(suite.cudasim, card, context_mib=16, **options)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GGML_", "CUDA", "HIP"))}
    command = [suite.cycle, suite.backend, models.demo_model(), "3", *arguments]
    done = subprocess.run(
        [str(part) for part in command], env=sim.env(environment), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["ok"] for row in rows if row["at"] == "given back"] == [1, 1, 1], "the hook refused or failed"
    return rows


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_every_cycle_is_clean(suite: hip_suite.HipSuite, tmp_path: Path, mode: str, devices: int) -> None:
    rows = cycles(suite, tmp_path / "card", mode, devices=devices)
    reports = {label: [row["report"] for row in rows if row["at"] == label] for label in ("in use", "given back")}
    assert len({report["trace"] for report in reports["in use"]}) == 1
    assert [report["contexts"] for report in reports["in use"]] == [devices] * 3
    assert reports["in use"][0]["launches"] > 300
    for report in reports["given back"]:
        assert (report["live"], report["stale"], report["misuse"]) == ({}, {}, {})
        assert (report["bytes"], report["contexts"]) == (0, 0)


def test_what_rocblas_keeps_is_all_that_stays(suite: hip_suite.HipSuite, tmp_path: Path) -> None:
    rows = cycles(suite, tmp_path / "card", "layer", "no-flash-attention", residual_mib=RESIDUAL // MIB)
    for report in [row["report"] for row in rows if row["at"] == "given back"]:
        assert (report["live"], report["stale"], report["misuse"]) == ({}, {}, {})
        assert (report["bytes"], report["contexts"]) == (RESIDUAL, 0)
