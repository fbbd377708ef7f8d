"""Streaming generation: pieces of text as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .batch import Batch
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
        if isinstance(strings, str):
            raise TypeError("stop is a sequence of strings; for one write [stop]")
        if any(not one for one in strings):
            raise ValueError("a stop string cannot be empty")
        self._strings = tuple(strings)
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
        max_tokens: int,
        stop: Sequence[str],
        sampler: Sampler | None,
        seq_id: int,
        cache_prompt: bool,
        sampling: Mapping[str, Any],
    ) -> None:
        if sampler is not None and sampling:
            raise TypeError(f"give a sampler or its options, not both: {', '.join(sampling)}")
        if not isinstance(max_tokens, int):
            raise TypeError(f"max_tokens must be an int, not {type(max_tokens).__name__}")
        vocab = context.model.vocab
        tokens = vocab.tokenize(prompt, parse_special=True) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise ValueError("the prompt has no tokens")
        if len(tokens) > context.n_ctx_seq:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, a sequence of this context at most {context.n_ctx_seq}"
            )
        self.finish_reason: FinishReason | None = None
        self.tokens: list[int] = []
        self.n_prompt = len(tokens)
        self.n_cached = 0
        self._context = context
        self._stop = StopStrings(stop)
        self._pieces = self._run(tokens, max_tokens, sampler, seq_id, cache_prompt, sampling)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()  # type: ignore[attr-defined]

    def _run(
        self,
        prompt: list[int],
        max_tokens: int,
        sampler: Sampler | None,
        seq_id: int,
        cache_prompt: bool,
        sampling: Mapping[str, Any],
    ) -> Iterator[str]:
        from .sampler import Sampler

        own = sampler is None
        chooser = Sampler(self._context.model, **sampling) if sampler is None else sampler
        joiner = PieceJoiner()
        vocab = self._context.model.vocab
        try:
            self._read_prompt(prompt, seq_id, cache_prompt)
            while self.finish_reason is None:
                if 0 <= max_tokens <= len(self.tokens):
                    self.finish_reason = FinishReason.LENGTH
                    break
                token = chooser.sample(self._context)
                if vocab.is_eog(token):
                    self.finish_reason = FinishReason.STOP
                    break
                self.tokens.append(token)
                text, stopped = self._stop.feed(joiner.feed(vocab.piece(token)))
                if stopped:
                    self.finish_reason = FinishReason.STOP
                if text:
                    yield text
                if stopped:
                    return
                if len(self.tokens) == max_tokens or self._context.length(seq_id) >= self._context.n_ctx_seq:
                    self.finish_reason = FinishReason.LENGTH
                    break
                self._context.decode([token], seq_id=seq_id)
                self._context.cached[seq_id].append(token)
            text, stopped = self._stop.feed(joiner.finish())
            text += self._stop.finish()
            if stopped:
                self.finish_reason = FinishReason.STOP
            if text:
                yield text
        finally:
            if own:
                chooser.close()

    def _read_prompt(self, prompt: list[int], seq_id: int, cache_prompt: bool) -> None:
        """Compute what of the prompt is not in the sequence yet; at least its last token, whose output is needed."""
        context = self._context
        with context._lock:
            known = context.cached.get(seq_id, []) if cache_prompt and context.length(seq_id) else []
            known = known[: context.length(seq_id)]
            same = 0
            while same < min(len(known), len(prompt) - 1) and known[same] == prompt[same]:
                same += 1
            if not context.remove(seq_id, same) and same:
                same = 0  # a recurrent state cannot go back by some tokens
                context.remove(seq_id)
            self.n_cached = same
            context.cached[seq_id] = prompt[:same]
            context.decode(Batch.of(prompt[same:], position=same, seq_id=seq_id))
            context.cached[seq_id] = list(prompt)
