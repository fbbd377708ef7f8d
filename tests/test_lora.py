"""LoRA adapters change what a model says, as long and as much as they are asked to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from models import draft, llama, lora

import pyggml

PROMPT = list(range(100, 120))


def logits(context: pyggml.Context) -> np.ndarray:
    context.clear()
    context.decode(PROMPT)
    return context.logits()


def test_scale_and_removal(tmp_path: Path) -> None:
    with (
        pyggml.Model(llama(tmp_path)) as model,
        model.context(n_threads=1, n_ctx=256) as context,
        model.context(n_threads=1, n_ctx=256) as other,
    ):
        plain = logits(context)
        with model.lora(lora(tmp_path)) as adapter:
            context.set_lora([adapter])
            full = logits(context)
            assert np.abs(full - plain).max() > 0.1
            context.set_lora({adapter: 0.5})
            half = logits(context)
            assert not np.array_equal(half, full) and not np.array_equal(half, plain)
            context.set_lora({adapter: 0})
            assert np.array_equal(logits(context), plain)
            context.set_lora({adapter: 1.0})
            assert np.array_equal(logits(context), full)
            assert np.array_equal(logits(other), plain), "another context is not concerned"
            context.set_lora({})
            assert np.array_equal(logits(context), plain)


def test_closing_takes_it_out(tmp_path: Path) -> None:
    with pyggml.Model(llama(tmp_path)) as model, model.context(n_threads=1, n_ctx=256) as context:
        plain = logits(context)
        first, second = model.lora(lora(tmp_path)), pyggml.LoraAdapter(model, lora(tmp_path, seed=5))
        context.set_lora([second])
        only = logits(context)
        context.set_lora([first, second])
        assert not np.array_equal(logits(context), only)
        first.close()
        assert np.array_equal(logits(context), only)
        with pytest.raises(pyggml.ClosedError):
            context.set_lora([first])
        second.close()
        assert np.array_equal(logits(context), plain)


def test_the_cache_is_not_taken_for_that_of_other_weights(tmp_path: Path) -> None:
    with pyggml.Model(llama(tmp_path)) as model, model.context(n_threads=1, n_ctx=256) as context:
        options = {"max_tokens": 12, "temperature": 0.0}
        plain = list(context.generate(PROMPT, **options))
        with model.lora(lora(tmp_path)) as adapter:
            context.set_lora([adapter])
            generation = context.generate(PROMPT, **options)
            assert list(generation) != plain and generation.n_cached == 0
        assert list(context.generate(PROMPT, **options)) == plain


def test_what_is_no_adapter_for_this(tmp_path: Path) -> None:
    with (
        pyggml.Model(llama(tmp_path)) as model,
        pyggml.Model(draft(tmp_path)) as other,
        model.context(n_threads=1, n_ctx=256) as context,
    ):
        with pytest.raises(pyggml.ModelLoadError, match="lora"):
            other.lora(lora(tmp_path))
        with pytest.raises(pyggml.ModelLoadError, match=r"llama-.*\.gguf"):
            model.lora(llama(tmp_path))
        with pytest.raises(FileNotFoundError, match="nowhere"):
            model.lora(tmp_path / "nowhere")
        with (
            pyggml.Model(llama(tmp_path, seed=9)) as twin,
            twin.lora(lora(tmp_path)) as adapter,
            pytest.raises(ValueError, match="another model"),
        ):
            context.set_lora([adapter])
        with pytest.raises(TypeError, match="must be a Model"):
            pyggml.LoraAdapter(context, lora(tmp_path))  # type: ignore[arg-type]
        with model.lora(lora(tmp_path)) as adapter:
            for wrong in (5, None, "adapter", [5], {5: 1.0}, adapter, {adapter: "1"}, {adapter: None}, {adapter: True}):
                with pytest.raises(TypeError):
                    context.set_lora(wrong)  # type: ignore[arg-type]
            for scale in (math.nan, math.inf, 1e300):
                with pytest.raises(ValueError, match="scale"):
                    context.set_lora({adapter: scale})


def test_the_same_bytes_for_a_closed_model(tmp_path: Path) -> None:
    model = pyggml.Model(llama(tmp_path))
    adapter = model.lora(lora(tmp_path))
    context = model.context(n_threads=1, n_ctx=256)
    context.set_lora([adapter])
    model.close()
    assert adapter.closed and context.closed
    adapter.close()
    with pytest.raises(pyggml.ClosedError):
        model.lora(lora(tmp_path))
