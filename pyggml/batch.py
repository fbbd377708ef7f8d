"""Batches: tokens with their positions and sequences, to be decoded together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from . import checks
from ._native import ffi

_MAX_INT = 2**31 - 1


class Batch:
    """Tokens of one or more sequences for `Context.decode()`. It is plain memory: nothing to close.

    `add()` takes them one by one; `logits` marks those whose output is wanted. A batch can be cleared and filled again.
    One thread at a time.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.sequences: list[tuple[int, ...]] = []
        self.outputs: list[bool] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        token: SupportsIndex,
        position: SupportsIndex,
        seq_ids: SupportsIndex | Sequence[SupportsIndex] = 0,
        *,
        logits: bool = False,
    ) -> None:
        """Add a token at `position` of the sequence `seq_ids`, or of several that share it."""
        several = seq_ids if isinstance(seq_ids, Sequence) and not isinstance(seq_ids, str) else (seq_ids,)
        entry = (
            checks.integer("token", token, 0, _MAX_INT),
            checks.integer("position", position, 0, _MAX_INT),
            tuple(checks.integer("seq_ids", one, 0, _MAX_INT) for one in several),
            checks.flag("logits", logits),
        )
        if len(set(entry[2])) != len(several) or not several:
            raise ValueError(f"seq_ids must name at least one sequence, and each once, not {seq_ids!r}")
        self.tokens.append(entry[0])
        self.positions.append(entry[1])
        self.sequences.append(entry[2])
        self.outputs.append(entry[3])

    @classmethod
    def of(cls, tokens: Iterable[SupportsIndex], *, position: int = 0, seq_id: int = 0) -> Batch:
        """The tokens of one sequence from `position` on, with an output for the last."""
        batch = cls()
        for offset, token in enumerate(checks.items("tokens", tokens, "tokens (int)")):
            batch.add(token, position + offset, seq_id)
        if batch.outputs:
            batch.outputs[-1] = True
        return batch

    def native(self, start: int, stop: int) -> tuple[Any, list[Any]]:
        """Entries `start` to `stop` as llama_batch, and what must be kept alive while it is used."""
        sequences = self.sequences[start:stop]
        ids = [ffi.new("llama_seq_id[]", one) for one in sequences]
        keep = [
            ffi.new("llama_token[]", self.tokens[start:stop]),
            ffi.new("llama_pos[]", self.positions[start:stop]),
            ffi.new("int32_t[]", [len(one) for one in sequences]),
            ffi.new("llama_seq_id *[]", ids),
            ffi.new("int8_t[]", [int(one) for one in self.outputs[start:stop]]),
        ]
        batch = ffi.new("struct llama_batch *")
        batch.n_tokens = stop - start
        batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits = keep
        return batch, [*keep, *ids]
