"""Streaming generation: stop strings, lengths, the prompt cache, Ctrl+C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models import bert, gemma3, llama, mamba

import pyggml
from pyggml import FinishReason
from pyggml.generate import StopStrings

PROMPT = list(range(100, 160))
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model(files: Path) -> Iterator[pyggml.Model]:
    with pyggml.Model(llama(files)) as model:
        yield model


def fresh(model: pyggml.Model, prompt: list[int], n: int = 12, **options: int) -> list[int]:
    with model.context(n_threads=1, n_ctx=1024, **options) as context:
        generation = context.generate(prompt, max_tokens=n, **GREEDY)
        list(generation)
        return generation.tokens


def test_pieces_make_the_text(demo_model: Path) -> None:
    with pyggml.Model(demo_model) as model, model.context(n_threads=1, n_ctx=512) as context:
        prompt = model.apply_chat_template([{"role": "user", "content": "Say the days of the week."}])
        generation = context.generate(prompt, max_tokens=24, **GREEDY)
        assert generation.finish_reason is None
        pieces = list(generation)
        assert len(pieces) > 10
        assert model.vocab.detokenize(generation.tokens) == "".join(pieces)
        assert generation.finish_reason is FinishReason.LENGTH and len(generation.tokens) == 24
        assert generation.n_prompt == len(model.vocab.tokenize(prompt, parse_special=True))
        whole = "".join(pieces)
        stop = whole[20:28]  # whatever it says
        short = context.generate(prompt, stop=[stop], **GREEDY)
        assert "".join(short) == whole[: whole.find(stop)]
        assert short.finish_reason is FinishReason.STOP


def test_the_models_own_end(demo_model: Path) -> None:
    with pyggml.Model(demo_model) as model, model.context(n_threads=1, n_ctx=512) as context:
        prompt = model.apply_chat_template([{"role": "user", "content": "Hi"}])
        generation = context.generate(prompt, max_tokens=60, **GREEDY)
        assert "".join(generation)
        assert generation.finish_reason is FinishReason.STOP and len(generation.tokens) < 60


def test_no_piece_splits_a_character(model: pyggml.Model) -> None:
    emoji = "🦀漢字é"
    grammar = f'root ::= "{emoji}"'
    with model.context(n_threads=1, n_ctx=256) as context:
        generation = context.generate(PROMPT, grammar=grammar, **GREEDY)
        pieces = list(generation)
        assert "".join(pieces) == emoji and len(generation.tokens) > len(emoji)
        assert not any("�" in piece for piece in pieces)
        cut = context.generate(PROMPT, grammar=grammar, max_tokens=1, **GREEDY)
        assert "".join(cut) == "�", "what is never completed is shown as such"


@pytest.mark.parametrize(
    ("pieces", "stop", "expected", "found"),
    [
        (["ab", "cd", "ef"], ["cde"], "ab", True),
        (["a", "b", "c", "d"], ["abcd"], "", True),
        (["ab", "ab", "ac", "x"], ["abac"], "ab", True),
        (["ab", "c"], ["bd", "bce"], "abc", False),
        (["xen", "d of", " text"], ["end", "end of"], "x", True),
        (["x<", "/", "s", ">y"], ["</s>", "<|im_end|>"], "x", True),
        (["x<", "|im_", "start", "|>"], ["<|im_end|>", "<|im_st"], "x", True),
        (["aaa", "aab"], ["aab"], "aaa", True),
        (["é", "🦀", "z"], ["🦀z"], "é", True),
        (["later", " first"], ["first", "ter"], "la", True),
        (["abc"], [], "abc", False),
    ],
)
def test_stop_strings(pieces: list[str], stop: list[str], expected: str, found: bool) -> None:
    strings, shown, stopped = StopStrings(stop), "", False
    for piece in pieces:
        text, stopped = strings.feed(piece)
        shown += text
        assert expected.startswith(shown), "something was shown that belongs to a stop string"
        if stopped:
            break
    if not stopped:
        shown += strings.finish()
    assert (shown, stopped) == (expected, found)


def test_a_stop_string_over_tokens(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        whole = "".join(context.generate(PROMPT, max_tokens=20, **GREEDY))
        stop = whole[7:15]
        assert (
            "".join(context.generate(PROMPT, max_tokens=20, stop=[stop, stop + "?"], **GREEDY))
            == whole[: whole.find(stop)]
        )
        assert "".join(context.generate(PROMPT, max_tokens=20, stop=["never there"], **GREEDY)) == whole


def test_lengths(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        nothing = context.generate(PROMPT, max_tokens=0)
        assert list(nothing) == [] and nothing.finish_reason is FinishReason.LENGTH
        full = context.generate(PROMPT, **GREEDY)
        list(full)
        assert full.finish_reason is FinishReason.LENGTH and len(full.tokens) == 256 - len(PROMPT) + 1
        assert list(context.generate(PROMPT * 4 + [5] * 16, **GREEDY)), (
            "a prompt as long as the context gives one token"
        )
        with pytest.raises(ValueError, match=r"257 tokens.*at most 256.*n_ctx"):
            context.generate([5] * 257)


@pytest.mark.parametrize("kind", [llama, gemma3, mamba])
def test_the_cached_prompt_changes_nothing(files: Path, kind: object) -> None:
    with pyggml.Model(kind(files)) as model, model.context(n_threads=1, n_ctx=1024, n_ubatch=32) as context:  # type: ignore[operator]

        def both(prompt: list[int]) -> int:
            generation = context.generate(prompt, max_tokens=12, **GREEDY)
            list(generation)
            assert generation.tokens == fresh(model, prompt, n_ubatch=32)
            assert generation.n_prompt == len(prompt)
            return generation.n_cached

        def answer() -> list[int]:
            return list(context._cached[0])

        long = PROMPT * 6
        assert both(long) == 0
        assert both([*answer(), 500, 501]) == len(long) + 11, "a longer prompt goes on where the last answer ended"
        back = both([*long[:150], 7, 8, 9])
        assert back == {"llama": 150}.get(model.metadata["general.architecture"], 0)
        assert both(long[:100]) in (99, 0)
        both([5, 6, 7])
        context.decode([9])  # what others add is not taken for the prompt
        assert both([5, 6, 7, 8]) <= 3
        fully = context.generate(long, max_tokens=3, cache_prompt=False, **GREEDY)
        list(fully)
        assert fully.n_cached == 0


def test_a_sliding_window_that_is_kept_whole(files: Path) -> None:
    long = PROMPT * 4
    with (
        pyggml.Model(gemma3(files)) as model,
        model.context(n_threads=1, n_ctx=1024, n_ubatch=32, swa_full=True) as context,
    ):
        assert model.n_swa == 32
        list(context.generate(long, max_tokens=4, **GREEDY))
        generation = context.generate([*long[:150], 7, 8], max_tokens=12, **GREEDY)
        list(generation)
        assert generation.n_cached == 150 and generation.tokens == fresh(model, [*long[:150], 7, 8], n_ubatch=32)


def test_leaving_early_keeps_what_was_computed(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=512) as context:
        for count, _ in enumerate(context.generate(PROMPT, max_tokens=50, **GREEDY)):
            if count == 4:
                break
        generation = context.generate(PROMPT, max_tokens=12, **GREEDY)
        next(generation)
        generation.close()
        assert list(generation) == []
        again = context.generate([*PROMPT, 5], max_tokens=12, **GREEDY)
        list(again)
        assert again.n_cached == len(PROMPT) and again.tokens == fresh(model, [*PROMPT, 5])


def test_sequences_do_not_mix(model: pyggml.Model) -> None:
    other = [*PROMPT[::-1]]
    with model.context(n_threads=1, n_ctx=1024, n_seq_max=2) as context:
        one = context.generate(PROMPT, max_tokens=8, seq_id=0, **GREEDY)
        two = context.generate(other, max_tokens=8, seq_id=1, **GREEDY)
        first = next(one)
        list(two)  # decodes between; the first would sample from the wrong output unless it notices
        del first
        with model.context(n_threads=1, n_ctx=1024) as alone:
            expected = alone.generate(other, max_tokens=8, **GREEDY)
            list(expected)
        assert two.tokens == expected.tokens
        one.close()


def test_interleaved_generations_are_each_right(model: pyggml.Model) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    with model.context(n_threads=1, n_ctx=1024, n_seq_max=2) as context:
        running = [context.generate(one, max_tokens=10, seq_id=i, **GREEDY) for i, one in enumerate(prompts)]
        open_ones = list(running)
        while open_ones:
            open_ones = [one for one in open_ones if next(one, None) is not None]
        assert [one.tokens for one in running] == [fresh(model, one, 10) for one in prompts]


def test_a_sampler_of_ones_own(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context, pyggml.Sampler(model, temperature=0.0) as sampler:
        expected = list(context.generate(PROMPT, max_tokens=5, **GREEDY))
        assert list(context.generate(PROMPT, max_tokens=5, sampler=sampler)) == expected
        with pytest.raises(TypeError, match="not both: temperature"):
            context.generate(PROMPT, sampler=sampler, temperature=1.0)
        with pytest.raises(TypeError, match="must be a Sampler"):
            context.generate(PROMPT, sampler="greedy")  # type: ignore[arg-type]


def test_wrong_arguments(files: Path, model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        for options, error, words in (
            ({"prompt": ""}, ValueError, "no tokens"), ({"prompt": []}, ValueError, "no tokens"), ({"prompt": 5}, TypeError, "prompt"),
            ({"prompt": None}, TypeError, "prompt"), ({"prompt": [1.5]}, TypeError, "prompt"), ({"prompt": ["a"]}, TypeError, "prompt"),
            ({"prompt": [2**70]}, ValueError, "prompt"), ({"prompt": b"bytes"}, TypeError, "prompt"),
            ({"max_tokens": -2}, ValueError, "max_tokens"),
            ({"max_tokens": 2**63}, ValueError, "max_tokens"), ({"max_tokens": 5.0}, TypeError, "max_tokens"),
            ({"max_tokens": True}, TypeError, "max_tokens"),
            ({"stop": "text"}, TypeError, "stop"), ({"stop": [""]}, ValueError, "stop"),
            ({"stop": [5]}, TypeError, "stop"), ({"stop": None}, TypeError, "stop"),
            ({"seq_id": 1}, ValueError, "seq_id"), ({"seq_id": "0"}, TypeError, "seq_id"), ({"cache_prompt": 1}, TypeError, "cache_prompt"),
            ({"temprature": 1}, TypeError, "temprature"),
        ):  # fmt: skip
            with pytest.raises(error, match=words):
                context.generate(**{"prompt": PROMPT, **options})
        list(context.generate(np.array(PROMPT), max_tokens=1))
    with (
        pyggml.Model(bert(files)) as encoder,
        encoder.context() as context,
        pytest.raises(ValueError, match="does not continue text"),
    ):
        context.generate("x")


# -- Ctrl+C ----------------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import signal, sys, threading, time, pyggml
model = pyggml.Model(sys.argv[1])
context = model.context(n_threads=1, n_ctx=4096)
context.decode([100])
expected = context.logits()
context.clear()
print("ready", flush=True)
try:
    {call}
    print("not interrupted")
except KeyboardInterrupt:
    print(time.time(), flush=True)
context.clear()
context.decode([100])
print((context.logits() == expected).all())
model.close()
"""


@pytest.mark.parametrize(
    "call",
    [
        "context.decode([101] * 4000)",
        "for _ in context.generate('Once upon a time', temperature=0.0, logit_bias={2: -1e9}): pass",
    ],
)
def test_ctrl_c_ends_a_computation(demo_model: Path, call: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(call=call), str(demo_model)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    sent = time.time()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    caught, usable = output.split()
    print(f"caught after {1000 * (float(caught) - sent):.1f} ms")
    assert float(caught) - sent < 1
    assert usable == "True"
