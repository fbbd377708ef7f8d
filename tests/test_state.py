"""Saving and loading state: an identical continuation, and nothing for damaged bytes to break."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from models import gemma3, llama, lora, mamba
from support import run_python

import pyggml

PROMPT = list(range(100, 160))


@pytest.mark.parametrize("kind", [llama, mamba, gemma3])
@pytest.mark.parametrize("whole", [True, False])
def test_the_continuation_is_the_same(tmp_path: Path, kind: object, whole: bool) -> None:
    with (
        pyggml.Model(kind(tmp_path)) as model,
        model.context(n_threads=1, n_ctx=512) as first,
        model.context(n_threads=1, n_ctx=512) as second,
    ):  # type: ignore[operator]
        first.decode(PROMPT)
        state = first.save_state(None if whole else 0)
        second.load_state(state, None if whole else 0)
        assert second.length() == len(PROMPT)
        for token in (7, 8, 9):
            first.decode([token])
            second.decode([token])
            if kind is gemma3:  # llama.cpp restores a sliding window into other cells, and adds up in another order
                np.testing.assert_allclose(first.logits(), second.logits(), atol=2e-2)
            else:
                assert np.array_equal(first.logits(), second.logits())


def test_one_sequence_as_another(tmp_path: Path) -> None:
    with pyggml.Model(llama(tmp_path)) as model, model.context(n_threads=1, n_ctx=1024, n_seq_max=4) as context:
        context.decode(PROMPT, seq_id=1)
        context.decode([5, 6], seq_id=0)
        state = context.save_state(1)
        context.load_state(state, 3)
        assert [context.length(seq_id) for seq_id in range(4)] == [2, 60, 0, 60]
        context.decode([7], seq_id=1)
        expected = context.logits()
        context.decode([7], seq_id=3)
        assert np.array_equal(context.logits(), expected)


def test_generate_goes_on_from_a_loaded_state(tmp_path: Path) -> None:
    with (
        pyggml.Model(llama(tmp_path)) as model,
        model.context(n_threads=1, n_ctx=512) as first,
        model.context(n_threads=1, n_ctx=512) as second,
    ):
        list(first.generate(PROMPT, max_tokens=5, temperature=0.0))
        expected = list(first.generate([*PROMPT, 5], max_tokens=5, temperature=0.0))
        first.clear()
        list(first.generate(PROMPT, max_tokens=5, temperature=0.0))
        second.load_state(first.save_state())
        generation = second.generate([*PROMPT, 5], max_tokens=5, temperature=0.0)
        assert list(generation) == expected
        assert generation.n_cached == len(PROMPT)
        # with another LoRA adapter the cache is of other weights
        with model.lora(lora(tmp_path)) as adapter:
            second.set_lora([adapter])
            second.load_state(first.save_state())
            generation = second.generate([*PROMPT, 5], max_tokens=1, temperature=0.0)
            list(generation)
            assert generation.n_cached == 0


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with (
        pyggml.Model(llama(tmp_path)) as model,
        pyggml.Model(llama(tmp_path, seed=1, n_layer=1)) as other,
        model.context(n_threads=1, n_ctx=1024) as context,
        other.context(n_threads=1, n_ctx=1024) as foreign,
    ):
        context.decode(PROMPT * 6)
        state = context.save_state()
        for options in ({"type_k": "bf16"}, {"n_seq_max": 2}, {"flash_attention": "off"}):
            with model.context(n_threads=1, n_ctx=1024, **options) as different:
                different.decode([5, 6])
                with pytest.raises(ValueError, match="other settings"):
                    different.load_state(state)
                assert different.length() == 2
        foreign.decode([5, 6])
        for call in (lambda: foreign.load_state(state), lambda: foreign.load_state(context.save_state(0), 0),
                     lambda: context.load_state(context.save_state(0)), lambda: context.load_state(state, 0)):  # fmt: skip
            with pytest.raises(ValueError, match="another model or other settings"):
                call()
        assert foreign.length() == 2 and context.length() == 360
        with model.context(n_threads=1, n_ctx=256) as small:
            for whole in (None, 0):
                with pytest.raises(ValueError, match="does not fit"):
                    small.load_state(context.save_state(whole), whole)
                assert small.length() == 0
                small.decode([5, 6])
        context.load_state(bytearray(state))
        context.load_state(memoryview(state))
        context.decode([5])


def test_wrong_types(tmp_path: Path) -> None:
    with pyggml.Model(llama(tmp_path)) as model, model.context(n_threads=1, n_ctx=256) as context:
        for wrong in (None, "state", 5, [1, 2]):
            with pytest.raises(TypeError, match="bytes"):
                context.load_state(wrong)  # type: ignore[arg-type]
        for wrong in (b"", b"x" * 1000):
            with pytest.raises(ValueError, match="no state"):
                context.load_state(wrong)
        for seq_id in (1, -1, 2**70):
            with pytest.raises(ValueError, match="seq_id"):
                context.save_state(seq_id)
            with pytest.raises(ValueError, match="seq_id"):
                context.load_state(b"", seq_id)


def test_damaged_states_never_crash(tmp_path: Path) -> None:
    """200 flipped bytes and 200 cut-offs, whole and of a sequence: each is refused, and the context goes on."""
    code = """
import random, sys, pyggml
random.seed(0)
with pyggml.Model(sys.argv[1]) as model, model.context(n_threads=1, n_ctx=256) as context:
    context.decode(list(range(100, 130)))
    for seq_id in (None, 0):
        state = context.save_state(seq_id)
        places = list(range(60)) + random.sample(range(len(state)), 140)
        for place in places:
            flipped = bytearray(state)
            flipped[place] ^= 1 << random.randrange(8)
            for damaged in (bytes(flipped), state[:place], state + b"x"):
                try:
                    context.load_state(damaged, seq_id)
                except ValueError:
                    continue
                sys.exit(f"damage at {place} was not noticed")
            assert context.length() == 30
    context.decode([7])
    context.load_state(state, 0)
    context.decode([7])
"""
    done: subprocess.CompletedProcess[str] = run_python(code, str(llama(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
