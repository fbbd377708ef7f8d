#!/usr/bin/env python3
"""What the patch of the CUDA backend costs on the way to a launch: instructions per launch, patched against unpatched.

    python benchmarks/cuda_launch.py [--times A B] [--json FILE]

Counted by callgrind inside the backend library alone, on the simulated CUDA (so not on a card, and nothing that a card does is in
it); both libraries are built with -O2 where the patch changes something. Needs valgrind and what tests/cuda/cuda_build.py needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cuda"))
import cuda_build  # noqa: E402


def instructions(profile: Path, library: Path) -> int:
    """Instructions executed in one library itself, from a callgrind profile."""
    total, inside, called = 0, False, False
    names: dict[str, str] = {}
    for line in profile.read_text().splitlines():
        if line.startswith(("ob=", "cob=")):  # a name is written once, at its first use
            key, _, name = line.partition("=")[2].partition(" ")
            names.setdefault(key, name)
            if line.startswith("ob="):
                inside = names[key] == str(library)
        elif line.startswith("calls="):
            called = True  # the next line is what the callee cost
        elif line[:1] in "+-*0123456789" and len(line.split()) == 2:
            if inside and not called:
                total += int(line.split()[1])
            called = False
    if not total:
        raise SystemExit(f"the profile knows nothing of {library}")
    return total


def measure(suite: cuda_build.Suite, flavour: str, times: int) -> tuple[int, int]:
    """Instructions in the backend while two graphs are computed `times` times, and the launches that made."""
    library = suite.backend(flavour)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(suite.cudasim),
        "GGML_CUDA_DISABLE_GRAPHS": "1",  # a graph's launches would not pass there
    }
    with tempfile.TemporaryDirectory() as directory:
        profile = Path(directory, "callgrind.out")
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={profile}",
            "--toggle-collect=ggml_backend_graph_compute",
        ]
        done = subprocess.run(
            [*command, suite.program("launches"), library, str(times)],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"the measured program failed\n{done.stderr[-3000:]}")
        return instructions(profile, library), int(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--times", type=int, nargs=2, default=(5, 25), help="two runs, so that what happens once drops out"
    )
    parser.add_argument("--built", type=Path, help="a directory where cuda_build.py --opt -O2 ran before")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    directory = ROOT / "build" / "cuda-measured"
    suite = cuda_build.built(options.built) if options.built else cuda_build.build(directory=directory, opt="-O2")
    result: dict[str, float] = {}
    for flavour in ("unpatched", "plain"):
        (few, launches_few), (many, launches_many) = (measure(suite, flavour, n) for n in options.times)
        result[flavour] = (many - few) / (launches_many - launches_few)
        print(f"{flavour:10} {result[flavour]:8.1f} instructions per launch ({launches_many - launches_few} launches)")
    result["ratio"] = result["plain"] / result["unpatched"]
    print(f"ratio      {result['ratio']:8.4f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
