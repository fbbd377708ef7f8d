"""Prompt and generation speed against llama-bench of the same build, and what a call costs.

    python benchmarks/decode.py [--model MODEL] [--build build/dev] [--rounds 5] [--threads N] [--json FILE]

Both run alternately with the same libraries, threads, batch sizes and attention. Speeds are medians of the rounds, and the ratio
is the median of the rounds' own ratios, since a machine's speed drifts. Like llama-bench, generation decodes one random token
after the other and samples none.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from common import RESULTS, median, table, write

import pyggml
from pyggml.demo import model_path

PROMPT, GENERATE = 512, 128


def ours(model: pyggml.Model, threads: int) -> dict[str, float]:
    rng = random.Random(0)
    tokens = [rng.randrange(len(model.vocab)) for _ in range(PROMPT)]
    result = {}
    with model.context(n_ctx=PROMPT, n_threads=threads) as context:
        context.decode(tokens)  # warm
        context.clear()
        start = time.perf_counter()
        context.decode(tokens)
        result["prompt"] = PROMPT / (time.perf_counter() - start)
    with model.context(n_ctx=GENERATE, n_threads=threads) as context:
        context.decode(tokens[:1])
        context.clear()
        start = time.perf_counter()
        for token in tokens[:GENERATE]:
            context.decode([token])
        result["generate"] = GENERATE / (time.perf_counter() - start)
    return result


def theirs(program: Path, model: Path, threads: int) -> dict[str, float]:
    command = [program, "-m", model, "-p", PROMPT, "-n", GENERATE, "-r", 1, "-t", threads, "-fa", "auto", "-o", "json"]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"llama-bench failed:\n{done.stderr}")
    tests = json.loads(done.stdout)
    return {("prompt" if one["n_prompt"] else "generate"): float(one["avg_ts"]) for one in tests}


def call_overhead(model: pyggml.Model) -> dict[str, float]:
    """Nanoseconds of one small call, through cffi and through ctypes."""
    directory = Path(pyggml.ffi.string(pyggml.lib.ggml_backend_directory()).decode())
    library = ctypes.CDLL(str(directory / "libpyggml-llama.so"))
    library.llama_n_ctx.argtypes, library.llama_n_ctx.restype = [ctypes.c_void_p], ctypes.c_uint32
    count = 200_000
    result = {}
    with model.context(n_ctx=64) as context:
        pointer = ctypes.c_void_p(int(pyggml.ffi.cast("uintptr_t", context.handle)))
        for name, function, argument in (
            ("cffi", pyggml.lib.llama_n_ctx, context.handle),
            ("ctypes", library.llama_n_ctx, pointer),
        ):
            times = []
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(count):
                    function(argument)
                times.append((time.perf_counter() - start) / count * 1e9)
            result[name] = median(times)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a GGUF file (default: the demo model)")
    parser.add_argument("--build", type=Path, default=Path("build/dev"), help="the build directory, for llama-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=pyggml.lib.pyggml_default_threads())
    parser.add_argument("--json", type=Path, default=RESULTS / "decode.json")
    options = parser.parse_args()
    path = options.model or model_path()
    subprocess.run(
        ["cmake", "--build", str(options.build), "--target", "llama-bench"], check=True, stdout=subprocess.DEVNULL
    )
    program = next(options.build.rglob("bin/llama-bench"))
    figures: dict[str, dict[str, list[float]]] = {"pyggml": {}, "llama-bench": {}}
    with pyggml.Model(path) as model:
        overhead = call_overhead(model)
        for round_ in range(options.rounds):
            for who in ("pyggml", "llama-bench") if round_ % 2 == 0 else ("llama-bench", "pyggml"):
                one = ours(model, options.threads) if who == "pyggml" else theirs(program, path, options.threads)
                for kind, speed in one.items():
                    figures[who].setdefault(kind, []).append(speed)
            print(f"round {round_ + 1} of {options.rounds}", file=sys.stderr)
    pyggml.backend_free()
    rows, ratios = [], {}
    for kind in ("prompt", "generate"):
        mine, other = (median(figures[who][kind]) for who in ("pyggml", "llama-bench"))
        pairs = zip(figures["pyggml"][kind], figures["llama-bench"][kind], strict=True)
        ratios[kind] = median([one / two for one, two in pairs])
        rows.append(
            [
                f"{kind} ({PROMPT if kind == 'prompt' else GENERATE} tokens)",
                f"{mine:.1f}",
                f"{other:.1f}",
                f"{ratios[kind]:.3f}",
            ]
        )
    table(["tokens/s", "pyggml", "llama-bench", "ratio"], rows)
    print()
    table(["one call", "cffi", "ctypes"], [["nanoseconds", f"{overhead['cffi']:.0f}", f"{overhead['ctypes']:.0f}"]])
    write(options.json, {"threads": options.threads, "rounds": figures, "ratios": ratios, "call_ns": overhead})
    return 0


if __name__ == "__main__":
    sys.exit(main())
