"""What our build answers is what upstream's own program answers, built from the same source without our patches."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import upstream

import pyggml

N_PREDICT = 64
N_THREADS = 4  # llama.cpp's default, which llama-simple keeps
PROMPTS = [
    "Once upon a time, in a village by the sea,",
    "The three most important inventions of the last century are",
    "The recipe for a good tomato soup: first,",
    "import os\n\nclass Queue:\n",
    "Café, naïve, 🌤 and Zürich are words that",
]


@pytest.fixture(scope="module")
def llama_simple() -> Path:
    return upstream.build("llama", "llama-simple") / "llama-simple"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_output_is_that_of_llama_simple(prompt: str, llama_simple: Path, demo_model: Path) -> None:
    command = [str(llama_simple), "-m", str(demo_model), "-n", str(N_PREDICT), prompt]
    theirs = subprocess.run(command, capture_output=True, check=True, timeout=300)
    decoded = re.search(rb"decoded (\d+) tokens", theirs.stderr)
    assert decoded is not None

    with pyggml.Model(demo_model) as model:
        tokens = model.vocab.tokenize(prompt, parse_special=True)
        with model.context(n_ctx=len(tokens) + N_PREDICT - 1, n_batch=len(tokens), n_threads=N_THREADS) as context:
            generation = context.generate(tokens, max_tokens=N_PREDICT, temperature=0.0)
            for _ in generation:
                pass
        text = b"".join(model.vocab.piece(one, special=True) for one in [*tokens, *generation.tokens])

    assert theirs.stdout == text + b"\n"
    assert len(generation.tokens) == int(decoded[1]) == N_PREDICT
    assert len(set(generation.tokens)) >= 16, "a model that repeats itself would agree with anything"
