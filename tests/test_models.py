"""The tiny models are what the other tests take them for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest

import pyggml

DIRECTORY = Path(__file__).parent.parent / "build" / "tests" / "models"
PROMPT = "The quick brown fox"


def greedy(path: Path, adapter: Path | None = None) -> list[int]:
    """64 tokens after the prompt."""
    with pyggml.Model(path) as model, model.context(n_ctx=128) as context:
        if adapter:
            context.set_lora([pyggml.LoraAdapter(model, adapter)])
        generation = context.generate(PROMPT, max_tokens=64, temperature=0.0)
        list(generation)
        return generation.tokens


@pytest.mark.parametrize(
    ("maker", "options"),
    [
        (models.llama, {}),
        (models.llama, {"dtype": "F16"}),
        (models.llama, {"dtype": "Q8_0"}),
        (models.llama, {"dtype": "Q4_0", "n_layer": 4, "n_embd": 128, "n_ff": 256, "n_head": 8}),
        (models.draft, {}),
        (models.gemma3, {}),
        (models.mamba, {}),
    ],
)
def test_greedy_output_varies(maker: Callable[..., Path], options: dict[str, Any]) -> None:
    said = greedy(maker(DIRECTORY, **options))
    assert len(set(said)) >= 16
    assert said == greedy(maker(DIRECTORY, **options))


def test_adapter_changes_the_output() -> None:
    path = models.llama(DIRECTORY)
    assert greedy(path, models.lora(DIRECTORY)) != greedy(path)


def test_files_are_reproducible(tmp_path: Path) -> None:
    for maker in (models.llama, models.mamba, models.rerank, models.lora, models.mmproj):
        assert maker(tmp_path / "a").read_bytes() == maker(tmp_path / "b").read_bytes()
