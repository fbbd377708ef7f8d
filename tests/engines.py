"""Engines for the tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support import BUILD

import pyggml

MODELS = BUILD / "models"
GREEDY = {"temperature": 0.0, "seed": 1}


def serve(path: Path | str, *, args: Sequence[str] = (), **options: Any) -> pyggml.Engine:
    """An engine for a tiny model: one thread, since several would mostly wait for each other."""
    return pyggml.Engine(path, args=["--threads", "1", *args], **options)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
