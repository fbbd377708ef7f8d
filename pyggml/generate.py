"""Streaming generation: pieces of text as they come."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import checks
from .vocab import PieceJoiner

if TYPE_CHECKING:
    from .context import Context
    from .sampler import Sampler


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # a token that ends it, or a stop string
    LENGTH = "length"  # max_tokens, or the context is full


class StopStrings:
    """Cuts text at the first of several strings, and holds back what may be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = checks.items("stop", strings, "strings; for one write [stop]")
        for one in self._strings:
            if not isinstance(one, str):
                raise TypeError(f"a stop string is a str, not {type(one).__name__}")
            if not one:
                raise ValueError("a stop string cannot be empty")
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that can be shown, and whether a stop string was found."""
        held = self._held + text
        found = [place for one in self._strings if (place := held.find(one)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max((self._overlap(held, one) for one in self._strings), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """How many characters at the end of `text` are the beginning of `string`."""
        for length in range(min(len(text), len(string) - 1), 0, -1):
            if text.endswith(string[:length]):
                return length
        return 0

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class Generation(Iterator[str]):
    """A generation that runs as it is iterated. See `Context.generate()`.

    `finish_reason` is None until it ended; `tokens` are those generated so far, `n_prompt` counts the prompt's and `n_cached` those of them
    that did not have to be computed. Closing it early (or leaving the loop) keeps what was computed in the sequence.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        max_tokens: SupportsIndex,
        stop: Sequence[str],
        sampler: Sampler | None,
        seq_id: SupportsIndex,
        cache_prompt: bool,
        sampling: Mapping[str, Any],
    ) -> None:
        from .sampler import Sampler

        model = context.model
        if not context._memory or model.has_encoder:
            raise ValueError(f"{model.path}: this model does not continue text (it is an encoder)")
        if context._embeddings:
            raise ValueError(
                "this context makes embeddings: make another one, without embeddings=True, to generate text"
            )
        limit = checks.integer("max_tokens", max_tokens, -1, 2**31 - 1)
        sequence = context._seq_id(seq_id)
        checks.flag("cache_prompt", cache_prompt)
        if isinstance(prompt, str):
            tokens = model.vocab.tokenize(prompt, parse_special=True)
        else:
            tokens = checks.tokens("prompt", prompt, model.n_vocab)
        if not tokens:
            raise ValueError("the prompt has no tokens")
        if len(tokens) > context.n_ctx_seq:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, a sequence of this context at most {context.n_ctx_seq}: "
                "make the context larger (n_ctx) or the prompt shorter"
            )
        self.finish_reason: FinishReason | None = None
        self.tokens: list[int] = []
        self.n_prompt = len(tokens)
        self.n_cached = 0
        self._context = context
        self._stop = StopStrings(stop)
        self._own: Sampler | None = None
        if sampler is None:
            sampler = self._own = Sampler(model, **sampling)
            self._own._internal = True
        elif not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be a Sampler, not {type(sampler).__name__}")
        elif sampling:
            raise TypeError(f"give a sampler or its options, not both: {', '.join(sampling)}")
        self._pieces = self._run(tokens, limit, sampler, sequence, cache_prompt)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End it. Nothing to do for one that was iterated to its end."""
        self._pieces.close()
        if self._own is not None:
            self._own.close()

    def _run(
        self, prompt: list[int], max_tokens: int, sampler: Sampler, seq_id: int, cache_prompt: bool
    ) -> Generator[str, None, None]:
        context, vocab = self._context, self._context.model.vocab
        joiner = PieceJoiner()
        try:
            self._read_prompt(prompt, seq_id, cache_prompt)
            while True:
                if len(self.tokens) == max_tokens:
                    self.finish_reason = FinishReason.LENGTH
                    break
                token = sampler.sample(context)
                if vocab.is_eog(token):
                    self.finish_reason = FinishReason.STOP
                    break
                self.tokens.append(token)
                text, stopped = self._stop.feed(joiner.feed(vocab.piece(token)))
                if text:
                    yield text
                if stopped:
                    self.finish_reason = FinishReason.STOP
                    return
                if len(self.tokens) == max_tokens or context.length(seq_id) >= context.n_ctx_seq:
                    self.finish_reason = FinishReason.LENGTH
                    break
                context._decode_known([token], seq_id)
            text, stopped = self._stop.feed(joiner.finish())
            if stopped:
                self.finish_reason = FinishReason.STOP
            if text := text + self._stop.finish():
                yield text
        finally:
            if self._own is not None:
                self._own.close()

    def _read_prompt(self, prompt: list[int], seq_id: int, cache_prompt: bool) -> None:
        """Compute what of the prompt is not in the sequence yet; at least its last token, whose output is needed."""
        context = self._context
        with context._lock:
            context._check_views("generate")
            same = context._common(prompt, seq_id) if cache_prompt else 0
            if not context.remove(seq_id, same):
                same = 0  # a recurrent state cannot go back by some tokens
                context.remove(seq_id)
            self.n_cached = same
            context._decode_known(prompt[same:], seq_id)
