"""Samplers: every option has its effect, every wrong one is refused."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models import draft, llama
from support import run_python

import pyggml

PROMPT = list(range(100, 120))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyggml.Context]:
    """A tiny model that has read PROMPT."""
    with (
        pyggml.Model(llama(tmp_path_factory.mktemp("models"))) as model,
        model.context(n_threads=1, n_ctx=512) as context,
    ):
        yield context


@pytest.fixture(autouse=True)
def nothing_left_open() -> None:
    """The model of this module stays open over its tests."""


@pytest.fixture
def logits(context: pyggml.Context) -> np.ndarray:
    context.clear()
    context.decode(PROMPT)
    return context.logits()


def drawn(context: pyggml.Context, count: int = 200, **options: object) -> list[int]:
    with pyggml.Sampler(context.model, **options) as sampler:  # type: ignore[arg-type]
        return [sampler.sample(context) for _ in range(count)]


def test_greedy_in_three_ways(context: pyggml.Context, logits: np.ndarray) -> None:
    best = int(logits.argmax())
    assert drawn(context, 3, temperature=0.0) == [best] * 3
    assert set(drawn(context, 50, top_k=1, temperature=2.0)) == {best}
    assert set(drawn(context, 50, temperature=1e-3)) == {best}


def test_a_seed_repeats_and_another_differs(context: pyggml.Context, logits: np.ndarray) -> None:
    wide = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    first = drawn(context, 30, seed=1, **wide)
    assert drawn(context, 30, seed=1, **wide) == first
    assert drawn(context, 30, seed=2, **wide) != first
    assert drawn(context, 30, **wide) != drawn(context, 30, **wide), "no seed is a random one"


def test_reset_begins_the_seed_again(context: pyggml.Context, logits: np.ndarray) -> None:
    with pyggml.Sampler(context.model, temperature=3.0, top_k=0, seed=7) as sampler:
        first = [sampler.sample(context) for _ in range(20)]
        sampler.reset()
        assert [sampler.sample(context) for _ in range(20)] == first


def test_temperature_widens(context: pyggml.Context, logits: np.ndarray) -> None:
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
    assert len(set(drawn(context, temperature=0.3, **off))) < len(set(drawn(context, temperature=5.0, **off)))


def test_top_k_top_p_and_min_p_cut(context: pyggml.Context, logits: np.ndarray) -> None:
    order = np.argsort(-logits)
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    hot = {"temperature": 50.0, "seed": 4, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert len(set(drawn(context, **hot))) > 100
    assert set(drawn(context, **{**hot, "top_k": 3})) == set(order[:3].tolist())
    kept = int(np.searchsorted(np.cumsum(probability[order]), 0.5)) + 1
    assert set(drawn(context, **{**hot, "top_p": 0.5})) <= set(order[:kept].tolist())
    likely = set(np.flatnonzero(probability >= 0.3 * probability.max()).tolist())
    assert set(drawn(context, **{**hot, "min_p": 0.3})) <= likely


def test_logit_bias(context: pyggml.Context, logits: np.ndarray) -> None:
    best, second = np.argsort(-logits)[:2].tolist()
    assert drawn(context, 1, temperature=0.0, logit_bias={best: -math.inf}) == [second]
    assert drawn(context, 1, temperature=0.0, logit_bias={500: 1000.0}) == [500]
    assert drawn(context, 1, temperature=0.0, logit_bias={}) == [best]


def test_penalties(context: pyggml.Context, logits: np.ndarray) -> None:
    best = int(logits.argmax())
    assert set(drawn(context, 20, temperature=0.0)) == {best}
    for option in ({"repeat_penalty": 5.0}, {"frequency_penalty": 50.0}, {"presence_penalty": 50.0}):
        assert max(Counter(drawn(context, 20, temperature=0.0, **option)).values()) < 20, option
    assert set(drawn(context, 20, temperature=0.0, presence_penalty=50.0, penalty_last_n=0)) == {best}
    # over everything that was seen, no token comes back; over the last four, some do
    assert len(set(drawn(context, 20, temperature=0.0, presence_penalty=1e4, penalty_last_n=-1))) == 20
    assert len(set(drawn(context, 20, temperature=0.0, presence_penalty=1e4, penalty_last_n=4))) == 5


def test_accept_counts_for_penalties(context: pyggml.Context, logits: np.ndarray) -> None:
    best = int(logits.argmax())
    with pyggml.Sampler(context.model, temperature=0.0, presence_penalty=1e4) as sampler:
        sampler.accept(best)
        assert sampler.sample(context) != best
        sampler.reset()
        assert sampler.sample(context) == best


GRAMMARS = {
    'root ::= "yes" | "no"': "yes|no",
    'root ::= [0-9]{3} "-" [a-c]+ # a comment (((\n': "[0-9]{3}-[a-c]+",
    'root ::= item ("," item){2}\nitem ::= "[" [x-z]? "]"': r"\[[x-z]?\](,\[[x-z]?\]){2}",
    'root ::= "é" "日本"': "é日本",
}


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_grammar_is_kept(context: pyggml.Context, grammar: str, temperature: float) -> None:
    text = "".join(context.generate(PROMPT, max_tokens=24, temperature=temperature, seed=1, grammar=grammar))
    whole = re.fullmatch(GRAMMARS[grammar], text)
    assert whole or ("+" in grammar and re.fullmatch("[0-9]{3}-[a-c]*", text)), text


def test_a_grammar_with_another_root(context: pyggml.Context) -> None:
    grammar = 'root ::= "a"\nother ::= "b"'
    assert "".join(context.generate(PROMPT, grammar=grammar, grammar_root="other", temperature=0.0)) == "b"


def test_a_token_against_the_grammar_is_refused(context: pyggml.Context) -> None:
    with (
        pyggml.Sampler(context.model, grammar='root ::= "yes"') as sampler,
        pytest.raises(ValueError, match="does not take token"),
    ):
        sampler.accept(context.model.vocab.tokenize("no")[0])


DEEP = 60_000
BAD_GRAMMARS = {
    "open string": ('root ::= "a', "unexpected end"),
    "empty": ("", "no rule 'root'"),
    "no root": ('start ::= "a"', "no rule 'root'"),
    "undefined": ("root ::= thing", "'thing' is used and not defined"),
    "no definition": ("root", "expecting ::="),
    "escape": (r'root ::= "\q"', "unknown escape"),
    "left recursion": ('root ::= root "a" | "b"', "left recursion"),
    "hidden left recursion": ('root ::= a root | "x"\na ::= b\nb ::= ""', "left recursion"),
    "empty repeated": ('root ::= ("")*', "left recursion"),
    "nested groups": ("root ::= " + "(" * DEEP + '"a"' + ")" * DEEP, "nested"),
    "unclosed groups": ("root ::= " + "(" * DEEP, "nested"),
    "long chain": (
        "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(5000)) + 'a5000 ::= "x"',
        "begin with",
    ),
    "exponential": (
        "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1} | a{i + 1}\n" for i in range(60)) + 'a60 ::= "x"',
        "ways",
    ),
    "many times": ('root ::= "a"{1000000000}', "repetitions"),
    "more than 64 bits": ('root ::= "a"{99999999999999999999999}', ""),
    "times times": ('root ::= ("a"?){2000}{2000}', "repe"),
    "a long thing many times": ('root ::= "' + "a" * 100_000 + '"{2000}', "too large"),
    "too long": ('root ::= "' + "a" * 2_000_000 + '"', "too large"),
}


@pytest.mark.parametrize("name", BAD_GRAMMARS)
def test_a_bad_grammar_is_refused_at_once(
    context: pyggml.Context, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    grammar, words = BAD_GRAMMARS[name]
    start = time.perf_counter()
    with pytest.raises(ValueError, match=f"grammar: .*{words}") as caught:
        context.generate(PROMPT, grammar=grammar)
    assert time.perf_counter() - start < 2
    assert len(str(caught.value)) < 1000
    assert capfd.readouterr() == ("", ""), "nothing is printed"


def test_large_grammars_that_are_fine(context: pyggml.Context) -> None:
    for grammar in (
        "root ::= " + "(" * 150 + '"a"' + ")" * 150,
        'root ::= ("a" | "b"){2000}',
        "root ::= [a-z]{0,1000}",
    ):
        pyggml.Sampler(context.model, grammar=grammar).close()


WRONG = [
    ({"temperature": -0.1}, ValueError), ({"temperature": math.nan}, ValueError), ({"temperature": "hot"}, TypeError),
    ({"temperature": True}, TypeError), ({"temperature": 10**400}, ValueError), ({"top_k": -1}, ValueError),
    ({"top_k": 2**63}, ValueError), ({"top_k": 1.5}, TypeError), ({"top_k": False}, TypeError), ({"top_p": 1.5}, ValueError),
    ({"top_p": -0.1}, ValueError), ({"min_p": math.inf}, ValueError), ({"min_p": 2}, ValueError),
    ({"repeat_penalty": 0}, ValueError), ({"repeat_penalty": None}, TypeError), ({"frequency_penalty": math.nan}, ValueError),
    ({"presence_penalty": -math.inf}, ValueError), ({"penalty_last_n": -2}, ValueError), ({"penalty_last_n": 2**40}, ValueError),
    ({"grammar": 5}, TypeError), ({"grammar": "root ::= \0"}, ValueError), ({"grammar": '"\ud800"'}, ValueError),
    ({"grammar": 'root ::= "a"', "grammar_root": None}, TypeError), ({"logit_bias": [1]}, TypeError),
    ({"logit_bias": {"a": 1.0}}, TypeError), ({"logit_bias": {1: math.nan}}, ValueError), ({"logit_bias": {1: math.inf}}, ValueError),
    ({"logit_bias": {-1: 0.0}}, ValueError), ({"logit_bias": {10**9: 0.0}}, ValueError), ({"seed": -1}, ValueError),
    ({"seed": 2**32 - 1}, ValueError), ({"seed": 2**64}, ValueError), ({"seed": 1.0}, TypeError), ({"heat": 1}, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error"), WRONG, ids=lambda one: str(one)[:40])
def test_wrong_options_name_themselves(
    context: pyggml.Context, options: dict[str, object], error: type[Exception]
) -> None:
    for call in (pyggml.Sampler, lambda model, **given: context.generate(PROMPT, **given)):
        with pytest.raises(error, match="(?s)" + list(options)[-1].split("_root")[0]):
            call(context.model, **options)  # type: ignore[operator]


def test_wrong_uses(context: pyggml.Context, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model must be a Model"):
        pyggml.Sampler(context)  # type: ignore[arg-type]
    with (
        pyggml.Model(draft(tmp_path)) as other,
        pyggml.Sampler(other) as foreign,
        pyggml.Sampler(context.model) as sampler,
    ):
        with pytest.raises(ValueError, match="another model"):
            foreign.sample(context)
        with pytest.raises(TypeError, match="must be a Context"):
            sampler.sample(other)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="there is no output 5000"):
            sampler.sample(context, 5000)
        for token in (-1, 1024, 2**63):
            with pytest.raises(ValueError, match="token must be"):
                sampler.accept(token)
        with pytest.raises(TypeError):
            sampler.accept("a")  # type: ignore[arg-type]


def test_a_grammar_under_a_small_stack(tmp_path: Path) -> None:
    """What is accepted must not need more than the smallest stack that threads have in practice."""
    code = """
import sys, threading, pyggml
threading.stack_size(512 * 1024)
model = pyggml.Model(sys.argv[1], vocab_only=True)
def work():
    pyggml.Sampler(model, grammar="root ::= " + "(" * 200 + '"a"' + ")" * 200).close()
thread = threading.Thread(target=work)
thread.start()
thread.join()
model.close()
"""
    done: subprocess.CompletedProcess[str] = run_python(code, str(llama(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")
