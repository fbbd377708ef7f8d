"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pyggml
from pyggml.vocab import PieceJoiner


@pytest.fixture(scope="module")
def vocab(demo_model: Path) -> Iterator[pyggml.Vocab]:
    with pyggml.Model(demo_model, vocab_only=True) as model:
        yield model.vocab


@pytest.fixture(autouse=True)
def nothing_left_open() -> None:
    """The model of this module stays open over its tests."""


@pytest.mark.parametrize(
    "text", ["Hello, world!", "", " two  blanks\n\ttab", "naïve café", "日本語のテキスト", "👩‍👩‍👧 family 🎉", "a\0b"]
)
def test_there_and_back(vocab: pyggml.Vocab, text: str) -> None:
    assert vocab.detokenize(vocab.tokenize(text)) == text
    assert vocab.tokenize(text.encode()) == vocab.tokenize(text)


def test_characters_split_over_tokens_are_joined(vocab: pyggml.Vocab) -> None:
    text = "x🦀y漢字z"
    pieces = [vocab.piece(token) for token in vocab.tokenize(text)]
    assert any(not _is_utf8(piece) for piece in pieces), "no character is split: the test shows nothing"
    joiner = PieceJoiner()
    shown = [joiner.feed(piece) for piece in pieces]
    assert "".join(shown) + joiner.finish() == text
    assert "�" not in "".join(shown)


def test_bytes_that_are_no_text(vocab: pyggml.Vocab) -> None:
    assert vocab.detokenize(vocab.tokenize(b"ab\xff\xfecd")) == "ab��cd"  # the tokenizer replaces them
    cut = [token for token in vocab.tokenize("🦀") if not _is_utf8(vocab.piece(token))][:1]
    assert vocab.detokenize(cut) == "�"
    joiner = PieceJoiner()
    assert joiner.feed(b"\xe6\xbc") == "" and joiner.finish() == "�"
    assert vocab.tokenize("\ud800")  # a lone surrogate is three bytes


def test_control_tokens(vocab: pyggml.Vocab) -> None:
    plain = vocab.tokenize("<|im_end|>")
    parsed = vocab.tokenize("<|im_end|>", parse_special=True)
    assert len(plain) > 1 and len(parsed) == 1
    assert vocab.is_eog(parsed[0]) and not vocab.is_eog(plain[0])
    assert vocab.piece(parsed[0]) == b"" and vocab.piece(parsed[0], special=True) == b"<|im_end|>"
    assert vocab.detokenize(parsed, special=True) == "<|im_end|>"
    assert vocab.eos == parsed[0] and vocab.bos is not None
    assert len(vocab) == 49152


def test_numpy_integers_are_tokens(vocab: pyggml.Vocab) -> None:
    tokens = np.array(vocab.tokenize("numbers"), dtype=np.int32)
    assert vocab.detokenize(tokens) == "numbers"
    assert vocab.piece(tokens[0]) == vocab.piece(int(tokens[0]))


def test_a_long_text(vocab: pyggml.Vocab) -> None:
    text = "word " * 40_000
    assert vocab.detokenize(vocab.tokenize(text)) == text


@pytest.mark.parametrize("wrong", [None, 5, ["a"], 1.5])
def test_wrong_types(vocab: pyggml.Vocab, wrong: object) -> None:
    with pytest.raises(TypeError, match="text must be str or bytes"):
        vocab.tokenize(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [-1, 49152, 2**31, 2**63, 2**70, -(2**63)])
def test_tokens_out_of_range(vocab: pyggml.Vocab, token: int) -> None:
    for call in (vocab.piece, vocab.is_eog, lambda one: vocab.detokenize([one])):
        with pytest.raises(ValueError, match=f"from 0 to 49151, not {token}"):
            call(token)


@pytest.mark.parametrize("token", [True, 1.0, "1", None])
def test_tokens_of_wrong_types(vocab: pyggml.Vocab, token: object) -> None:
    vocab.piece(1)  # what is equal to a known token is not that token
    for call in (vocab.piece, vocab.is_eog):
        with pytest.raises(TypeError, match="must be an int"):
            call(token)
    with pytest.raises(TypeError):
        vocab.detokenize("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="add_special must be a bool"):
        vocab.tokenize("x", add_special=1)  # type: ignore[arg-type]


def _is_utf8(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
