"""What the benchmarks share: medians, tables and JSON."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyggml

RESULTS = Path(__file__).parent / "results"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> dict[str, Any]:
    """Where a figure was measured."""
    pyggml.devices()
    return {
        "processor": next((one.description for one in pyggml.devices() if one.type == "cpu"), platform.processor()),
        "devices": [one.name for one in pyggml.devices()],
        "python": platform.python_version(),
        "system": platform.platform(),
        "pyggml": pyggml.__version__,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[str(one) for one in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        print(
            "  ".join(
                f"{one:<{width}}" if i == 0 else f"{one:>{width}}"
                for i, (one, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def write(path: Path, figures: dict[str, Any]) -> None:
    """Write figures as JSON, with the machine they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n")
    print(f"\nwritten to {path}")
