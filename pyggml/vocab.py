"""The vocabulary of a model: text to tokens and back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._native import check, ffi, lib

if TYPE_CHECKING:
    from .model import Model


class Vocab:
    """Text to tokens and back. It belongs to its model and can be used by several threads."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = model._lock
        self._bytes: dict[tuple[int, bool], bytes] = {}
        self._size = int(lib.llama_vocab_n_tokens(self.handle))
        self._has_tokenizer = bool(lib.llama_vocab_type(self.handle) != lib.LLAMA_VOCAB_TYPE_NONE)
        self._eog = frozenset(token for token in range(self._size) if lib.llama_vocab_is_eog(self.handle, token))

    @property
    def handle(self) -> Any:
        return lib.llama_model_get_vocab(self._model.handle)

    def __len__(self) -> int:
        """How many tokens there are."""
        return self._size

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The tokens of a text.

        `add_special` adds what the model expects at the beginning and end (BOS, EOS); `parse_special` takes "<|...|>" in the
        text as control tokens: right for a rendered chat template, wrong for what a user typed.
        """
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")
        elif not isinstance(text, bytes):
            raise TypeError(f"text must be str or bytes, not {type(text).__name__}")
        if not self._has_tokenizer:
            raise ValueError(f"{self._model.path}: the model has no tokenizer; give tokens instead of text")
        capacity = len(text) + 8
        count = ffi.new("int32_t *")
        while True:
            tokens = ffi.new("llama_token[]", capacity)
            status = lib.pyggml_tokenize(
                self.handle, text, len(text), tokens, capacity, add_special, parse_special, count
            )
            if status != lib.PYGGML_NO_SLOT:
                check(status, "the text cannot be tokenized")
                return list(ffi.unpack(tokens, count[0])) if count[0] else []
            capacity = count[0]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; a control token has some only with `special`. They may be part of a UTF-8 character."""
        found = self._bytes.get((token, special))
        if found is None:
            if not isinstance(token, int):
                raise TypeError(f"a token is an int, not {type(token).__name__}")
            if not 0 <= token < len(self):
                raise ValueError(f"there is no token {token}: the vocabulary has {len(self)}")
            size = 32
            while True:
                buffer = ffi.new("char[]", size)
                with self._lock:
                    written = lib.llama_token_to_piece(self.handle, token, buffer, size, 0, special)
                if written >= 0:
                    break
                size = -written
            found = self._bytes[token, special] = bytes(ffi.buffer(buffer, written))
        return found

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens. Bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.piece(token, special=special) for token in tokens).decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (end of text, end of turn)."""
        return token in self._eog

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
        with self._lock:
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
