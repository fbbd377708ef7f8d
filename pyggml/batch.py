"""Batches: tokens with their positions and sequences, to be decoded together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ._native import ffi


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

    def add(self, token: int, position: int, seq_ids: int | Sequence[int] = 0, *, logits: bool = False) -> None:
        """Add a token at `position` of the sequence `seq_ids`, or of several that share it."""
        if not isinstance(token, int) or not isinstance(position, int):
            raise TypeError(f"token and position are int, not {type(token).__name__} and {type(position).__name__}")
        if position < 0:
            raise ValueError(f"position must not be negative, got {position}")
        sequences = (seq_ids,) if isinstance(seq_ids, int) else tuple(seq_ids)
        if not sequences or min(sequences) < 0:
            raise ValueError(f"a token belongs to at least one sequence from 0 on, not to {seq_ids!r}")
        self.tokens.append(token)
        self.positions.append(position)
        self.sequences.append(sequences)
        self.outputs.append(logits)

    @classmethod
    def of(cls, tokens: Iterable[int], *, position: int = 0, seq_id: int = 0) -> Batch:
        """The tokens of one sequence from `position` on, with an output for the last."""
        batch = cls()
        for offset, token in enumerate(tokens):
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
