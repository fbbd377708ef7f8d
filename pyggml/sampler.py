"""Samplers: how the next token is chosen from the logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import checks
from ._native import check, ffi, lib, reason
from .model import Model
from .resource import Resource

if TYPE_CHECKING:
    from .context import Context

_MAX_INT = 2**31 - 1


class Sampler(Resource):
    """A chain of samplers: logit bias, grammar, penalties, top-k, top-p, min-p, temperature and the choice, in this order.

    `temperature` 0 takes the most probable token; `top_k` 0, `top_p` 1 and `min_p` 0 switch that step off, as do
    `repeat_penalty` 1 and the other penalties at 0; they look at the last `penalty_last_n` tokens (-1: all). `grammar` is
    GBNF with the root `grammar_root`. `logit_bias` maps tokens to what is added to their logit; -inf forbids one. `seed`
    None takes a random one.

    A sampler remembers what it has seen (penalties, grammar): `reset()` makes it forget. One thread at a time.
    Raises ValueError for a grammar that is not valid and for values out of range.
    """

    def __init__(
        self,
        model: Model,
        *,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        penalty_last_n: int = 64,
        grammar: str | None = None,
        grammar_root: str = "root",
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model must be a Model, not {type(model).__name__}")
        heat = checks.number("temperature", temperature, 0)
        n_top = checks.integer("top_k", top_k, 0, _MAX_INT)
        mass = checks.number("top_p", top_p, 0, 1)
        least = checks.number("min_p", min_p, 0, 1)
        repeat = checks.number("repeat_penalty", repeat_penalty, 1e-3)
        frequency = checks.number("frequency_penalty", frequency_penalty)
        presence = checks.number("presence_penalty", presence_penalty)
        last_n = checks.integer("penalty_last_n", penalty_last_n, -1, 1 << 20)
        if last_n < 0:
            last_n = model.n_ctx_train
        # the highest one stands for a random one
        start = lib.LLAMA_DEFAULT_SEED if seed is None else checks.integer("seed", seed, 0, lib.LLAMA_DEFAULT_SEED - 1)
        biases = _biases(logit_bias, model.n_vocab)
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())

        def add(sampler: Any) -> None:
            lib.llama_sampler_chain_add(chain, sampler)

        try:
            if biases:
                add(
                    lib.llama_sampler_init_logit_bias(model.n_vocab, len(biases), ffi.new("llama_logit_bias[]", biases))
                )
            if grammar is not None:
                add(_grammar(model, grammar, grammar_root))
            if last_n and (repeat != 1 or frequency or presence):
                add(lib.llama_sampler_init_penalties(model.n_vocab, last_n, repeat, frequency, presence))
            if heat == 0:
                add(lib.llama_sampler_init_greedy())
            else:
                if n_top > 0:
                    add(lib.llama_sampler_init_top_k(n_top))
                if mass < 1:
                    add(lib.llama_sampler_init_top_p(mass, 1))
                if least > 0:
                    add(lib.llama_sampler_init_min_p(least, 1))
                add(lib.llama_sampler_init_temp(heat))
                add(lib.llama_sampler_init_dist(start))
            with model._lock:
                model.handle  # noqa: B018  (closed meanwhile?)
                self._adopt(chain, model)
        except BaseException:
            if not self._adopted:  # Ctrl+C may come at any line
                lib.llama_sampler_free(chain)
            raise

    def __repr__(self) -> str:
        return f"Sampler for {self.__dict__.get('_parent')!r}"

    def _free(self, handle: Any) -> None:
        lib.llama_sampler_free(handle)

    def sample(self, context: Context, index: SupportsIndex = -1) -> int:
        """Choose a token from output `index` of the last decode (-1: the last) and remember it."""
        from .context import Context

        if not isinstance(context, Context):
            raise TypeError(f"context must be a Context, not {type(context).__name__}")
        with self._lock, context._lock:
            sampler, handle = self.handle, context.handle
            if context.model is not self._parent:
                raise ValueError("this sampler was made for another model than the context's")
            output = context._output(index)
            token = ffi.new("llama_token *")
            check(lib.pyggml_sample(sampler, handle, output, token), "no token can be sampled")
            return int(token[0])

    def accept(self, token: SupportsIndex) -> None:
        """Remember a token that was not sampled here, for penalties and grammar."""
        assert isinstance(self._parent, Model)
        with self._lock:
            handle = self.handle
            known = checks.integer("token", token, 0, self._parent.n_vocab - 1)
            if lib.pyggml_accept(handle, known):
                raise ValueError(f"the sampler does not take token {known}: {reason()}")

    def reset(self) -> None:
        """Forget what was seen."""
        with self._lock:
            lib.llama_sampler_reset(self.handle)


def _grammar(model: Model, grammar: str, root: str) -> Any:
    source, start = checks.string("grammar", grammar), checks.string("grammar_root", root)
    out = ffi.new("struct llama_sampler **")
    with model._lock:
        if lib.pyggml_grammar_new(model.vocab.handle, source, start, out):
            raise ValueError(f"grammar: {reason()}")
    return out[0]


def _biases(biases: Mapping[int, float] | None, n_vocab: int) -> list[tuple[int, float]]:
    if biases is None:
        return []
    if not isinstance(biases, Mapping):
        raise TypeError(f"logit_bias must map tokens to numbers, not be a {type(biases).__name__}")
    return [
        (
            checks.integer("logit_bias: a token", token, 0, n_vocab - 1),
            bias if bias == -math.inf else checks.number("logit_bias: a bias", bias),
        )
        for token, bias in biases.items()
    ]
