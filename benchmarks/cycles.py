"""Load, generate, close, backend_free(), many times: what grows?

    python benchmarks/cycles.py [--model MODEL] [--cycles 200] [--json FILE]

Shows resident memory, threads and descriptors, and whether every answer was the same. Exit status 1 if the median of the last ten
cycles is more than 4 MiB above that of the ten around cycle 20, or if anything else changed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from common import RESULTS, median, table, write

import pyggml
from pyggml.demo import model_path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a GGUF file (default: the demo model)")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--json", type=Path, default=RESULTS / "cycles.json")
    options = parser.parse_args()
    path = options.model or model_path()
    resident, threads, descriptors, answers = [], [], [], []
    for cycle in range(options.cycles):
        with pyggml.Model(path) as model, model.context(n_ctx=256) as context:
            answers.append("".join(context.generate("Once upon a time", max_tokens=16, temperature=0.0)))
        pyggml.backend_free()
        resident.append((pyggml.memory.host().own or 0) / 2**20)
        threads.append(len(os.listdir("/proc/self/task")))
        descriptors.append(len(os.listdir("/proc/self/fd")))
        if (cycle + 1) % 20 == 0:
            print(f"cycle {cycle + 1}: {resident[-1]:.1f} MiB", file=sys.stderr)
    first, last = resident[15:25], resident[-10:]
    growth = median(last) - median(first)
    rows = [
        ["resident, MiB", f"{median(first):.1f}", f"{median(last):.1f}", f"{growth:+.2f}"],
        ["threads", threads[19], threads[-1], threads[-1] - threads[19]],
        ["descriptors", descriptors[19], descriptors[-1], descriptors[-1] - descriptors[19]],
        ["distinct answers", len(set(answers[:20])), len(set(answers)), len(set(answers)) - 1],
    ]
    table(["", "cycle 20", f"cycle {options.cycles}", "change"], rows)
    write(
        options.json,
        {
            "cycles": options.cycles,
            "resident_mib": resident,
            "threads": threads,
            "descriptors": descriptors,
            "growth_mib": growth,
        },
    )
    same = threads[-1] == threads[19] and descriptors[-1] == descriptors[19] and len(set(answers)) == 1
    return 0 if growth <= 4 and same else 1


if __name__ == "__main__":
    sys.exit(main())
