"""The vocabulary of a model: text to tokens and back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import checks
from ._native import check, ffi, lib

if TYPE_CHECKING:
    from .model import Model
_MAX_TEXT = 1 << 28  # bytes; upstream counts in 32 bits


class Vocab:
    """Text to tokens and back. It belongs to its model and can be used by several threads."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._bytes: dict[tuple[int, bool], bytes] = {}
        self._size = model.n_vocab
        self._has_tokenizer = bool(lib.llama_vocab_type(self.handle) != lib.LLAMA_VOCAB_TYPE_NONE)
        self._eog = frozenset(token for token in range(self._size) if lib.llama_vocab_is_eog(self.handle, token))

    @property
    def handle(self) -> Any:
        return lib.llama_model_get_vocab(self._model.handle)

    def __len__(self) -> int:
        """How many tokens there are."""
        self._model.handle  # noqa: B018  (raises for a closed model)
        return self._size

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The tokens of a text.

        `add_special` adds what the model expects at the beginning and end (BOS, EOS); `parse_special` takes "<|...|>" in the
        text as control tokens: right for a rendered chat template, wrong for what a user typed.
        """
        checks.flag("add_special", add_special)
        checks.flag("parse_special", parse_special)
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")
        elif not isinstance(text, bytes):
            raise TypeError(f"text must be str or bytes, not {type(text).__name__}")
        if len(text) > _MAX_TEXT:
            raise ValueError(f"the text has {len(text)} bytes, at most {_MAX_TEXT} can be tokenized; do it in parts")
        if not self._has_tokenizer:
            raise ValueError(f"{self._model.path}: the model has no tokenizer; give tokens instead of text")
        capacity = len(text) + 8
        count = ffi.new("int32_t *")
        while True:
            tokens = ffi.new("llama_token[]", capacity)
            with self._model._lock:
                status = lib.pyggml_tokenize(
                    self.handle, text, len(text), tokens, capacity, add_special, parse_special, count
                )
            if status != lib.PYGGML_NO_SLOT:
                check(status, "the text cannot be tokenized")
                return list(ffi.unpack(tokens, count[0])) if count[0] else []
            capacity = count[0]

    def piece(self, token: SupportsIndex, *, special: bool = False) -> bytes:
        """The bytes of one token; a control token has some only with `special`. They may be part of a UTF-8 character."""
        handle = self.handle
        found = self._bytes.get((token, special))  # type: ignore[arg-type]
        if found is None or type(token) is not int or type(special) is not bool:
            token = checks.integer("a token", token, 0, self._size - 1)
            checks.flag("special", special)
            size = 32
            while True:
                buffer = ffi.new("char[]", size)
                with self._model._lock:
                    written = lib.llama_token_to_piece(handle, token, buffer, size, 0, special)
                if written >= 0:
                    break
                size = -written
            found = self._bytes[token, special] = bytes(ffi.buffer(buffer, written))
        return found

    def detokenize(self, tokens: Iterable[SupportsIndex], *, special: bool = False) -> str:
        """The text of tokens. Bytes that are no UTF-8 become U+FFFD."""
        several = checks.items("tokens", tokens, "tokens (int)")
        return b"".join(self.piece(token, special=special) for token in several).decode("utf-8", "replace")

    def is_eog(self, token: SupportsIndex) -> bool:
        """Whether the token ends a generation (end of text, end of turn)."""
        return checks.integer("a token", token, 0, len(self) - 1) in self._eog

    @property
    def bos(self) -> int | None:
        return self._token(lib.llama_vocab_bos)

    @property
    def eos(self) -> int | None:
        return self._token(lib.llama_vocab_eos)

    @property
    def eot(self) -> int | None:
        """End of turn."""
        return self._token(lib.llama_vocab_eot)

    @property
    def nl(self) -> int | None:
        return self._token(lib.llama_vocab_nl)

    def _token(self, function: Any) -> int | None:
        with self._model._lock:
            token = int(function(self.handle))
        return None if token < 0 else token


class PieceJoiner:
    """Turns pieces into text as it comes: the bytes of a character that is split over tokens are held back until it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left, with U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", True)
