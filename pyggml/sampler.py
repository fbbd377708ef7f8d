"""Samplers: how the next token is chosen from the logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._native import check, ffi, lib, reason
from .resource import Resource

if TYPE_CHECKING:
    from .context import Context
    from .model import Model


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
        from .model import Model

        if not isinstance(model, Model):
            raise TypeError(f"model must be a Model, not {type(model).__name__}")
        for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p), ("repeat_penalty", repeat_penalty),
                            ("frequency_penalty", frequency_penalty), ("presence_penalty", presence_penalty)):  # fmt: skip
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value}")
        if repeat_penalty <= 0:
            raise ValueError(f"repeat_penalty must be above 0, not {repeat_penalty}")
        if seed is not None and not 0 <= seed < lib.LLAMA_DEFAULT_SEED:  # which stands for a random one
            raise ValueError(f"seed must be from 0 to {lib.LLAMA_DEFAULT_SEED - 1}, not {seed}")
        vocab = model.vocab
        n_vocab = len(vocab)
        grammar_sampler = _grammar(vocab.handle, grammar, grammar_root) if grammar is not None else None
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())

        def add(sampler: Any) -> None:
            lib.llama_sampler_chain_add(chain, sampler)

        try:
            if logit_bias:
                wrong = [token for token in logit_bias if not 0 <= token < n_vocab]
                if wrong:
                    raise ValueError(
                        f"logit_bias names tokens that do not exist: {wrong[:5]} (the vocabulary has {n_vocab})"
                    )
                entries = ffi.new("llama_logit_bias[]", [(token, bias) for token, bias in logit_bias.items()])
                add(lib.llama_sampler_init_logit_bias(n_vocab, len(entries), entries))
        except BaseException:
            lib.llama_sampler_free(chain)
            if grammar_sampler is not None:
                lib.llama_sampler_free(grammar_sampler)
            raise
        if grammar_sampler is not None:
            add(grammar_sampler)
        if repeat_penalty != 1 or frequency_penalty or presence_penalty:
            add(
                lib.llama_sampler_init_penalties(
                    n_vocab, penalty_last_n, repeat_penalty, frequency_penalty, presence_penalty
                )
            )
        if temperature <= 0:
            add(lib.llama_sampler_init_greedy())
        else:
            if top_k > 0:
                add(lib.llama_sampler_init_top_k(top_k))
            if top_p < 1:
                add(lib.llama_sampler_init_top_p(max(top_p, 0.0), 1))
            if min_p > 0:
                add(lib.llama_sampler_init_min_p(min(min_p, 1.0), 1))
            add(lib.llama_sampler_init_temp(temperature))
            add(lib.llama_sampler_init_dist(lib.LLAMA_DEFAULT_SEED if seed is None else seed))
        super().__init__(chain, model)

    def __repr__(self) -> str:
        return "Sampler()" if self.closed else f"Sampler(seed={lib.llama_sampler_get_seed(self.handle)})"

    def _free(self, handle: Any) -> None:
        lib.llama_sampler_free(handle)

    def sample(self, context: Context, index: int = -1) -> int:
        """Choose a token from output `index` of the last decode (-1: the last) and remember it."""
        with self._lock, context._lock:
            context._check_output(index)
            token = ffi.new("llama_token *")
            check(lib.pyggml_sample(self.handle, context.handle, index, token), "no token can be sampled")
            return int(token[0])

    def accept(self, token: int) -> None:
        """Remember a token that was not sampled here, for penalties and grammar."""
        with self._lock:
            check(lib.pyggml_accept(self.handle, token), f"the sampler does not take token {token}")

    def reset(self) -> None:
        """Forget what was seen."""
        with self._lock:
            lib.llama_sampler_reset(self.handle)


def _grammar(vocab: Any, grammar: str, root: str) -> Any:
    out = ffi.new("struct llama_sampler **")
    if "\0" in grammar or "\0" in root:
        raise ValueError("a grammar cannot contain a null character")
    if lib.pyggml_grammar_new(vocab, grammar.encode(), root.encode(), out):
        raise ValueError(f"grammar: {reason()}")
    return out[0]
