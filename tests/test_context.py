"""Contexts: decoding, batches, outputs, sequences, aborting, limits."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models import bert, gemma3, llama, mamba, rerank

import pyggml
from pyggml import Batch


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model(files: Path) -> Iterator[pyggml.Model]:
    with pyggml.Model(llama(files)) as model:
        yield model


# -- batches ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [llama, gemma3, mamba])
@pytest.mark.parametrize("unified", [False, True])
def test_several_sequences_in_a_batch_are_as_one_by_one(files: Path, kind: object, unified: bool) -> None:
    texts = [[105, 106, 107], [300, 301], [220, 221, 222, 223]]
    with pyggml.Model(kind(files)) as model:  # type: ignore[operator]
        alone = []
        for tokens in texts:
            with model.context(n_threads=1, n_ctx=512) as context:
                context.decode(tokens)
                alone.append(context.logits())
        with model.context(n_threads=1, n_ctx=768, n_seq_max=3, kv_unified=unified) as context:
            batch = Batch()
            for place in range(4):  # mixed, not one after the other
                for seq_id, tokens in enumerate(texts):
                    if place < len(tokens):
                        batch.add(tokens[place], place, seq_id, logits=place == len(tokens) - 1)
            context.decode(batch)
            for seq_id, tokens in enumerate(texts):
                index = next(i for i in range(len(batch)) if batch.sequences[i] == (seq_id,) and batch.outputs[i])
                np.testing.assert_allclose(context.logits(index), alone[seq_id], atol=2e-2)
                assert context.logits(index).argmax() == alone[seq_id].argmax()
                assert context.length(seq_id) == len(tokens)


def test_a_token_can_belong_to_several_sequences(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=512, n_seq_max=2, kv_unified=True) as context:
        batch = Batch()
        batch.add(5, 0, [0, 1])
        batch.add(6, 1, (0, 1), logits=True)
        context.decode(batch)
        assert context.length(0) == context.length(1) == 2


def test_outputs_are_where_they_were_asked_for(model: pyggml.Model) -> None:
    tokens = list(range(100, 110))
    with model.context(n_threads=1, n_ctx=256) as context:
        batch = Batch()
        for place, token in enumerate(tokens):
            batch.add(token, place, logits=place in (2, 9))
        context.decode(batch)
        third = context.logits(2)
        assert np.array_equal(context.logits(-2), third) and np.array_equal(context.logits(-1), context.logits(9))
        for index in (0, 3, 10, -3, 2**30):
            with pytest.raises(ValueError, match=r"outputs at \[2, 9\]"):
                context.logits(index)
        context.clear()
        context.decode(tokens[:3])
        np.testing.assert_allclose(context.logits(), third, atol=1e-3)
        context.decode(Batch.of([7], position=3))
        assert context.length() == 4


def test_a_batch_larger_than_n_batch(model: pyggml.Model) -> None:
    tokens = list(range(100, 200))
    with model.context(n_threads=1, n_ctx=256) as large, model.context(n_threads=1, n_ctx=256, n_batch=32) as small:
        large.decode(tokens)
        small.decode(tokens)
        np.testing.assert_allclose(small.logits(), large.logits(), atol=2e-2)
        assert np.array_equal(small.logits(99), small.logits(-1)), "an index is the place in the whole batch"
        assert small.n_batch == 32 and small.n_ubatch == 32


def test_no_output_without_a_decode(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        with pytest.raises(ValueError, match="decode a batch"):
            context.logits()
        context.decode([5])
        with pytest.raises(ValueError):
            context.decode([-1])
        with pytest.raises(ValueError, match="embeddings=True"):
            context.embeddings()
        with pytest.raises(ValueError, match="embeddings=True"):
            context.embeddings_seq()
        with pytest.raises(ValueError, match="embeddings=True"):
            context.embed("a text")


# -- views -----------------------------------------------------------------------------------------------------------------


def test_copies_stay_and_views_show(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        context.decode([100, 101])
        copied, view = context.logits(), context.logits(copy=False)
        assert np.array_equal(copied, view) and view.dtype == np.float32 and view.shape == (1024,)
        assert copied.flags.writeable and not view.flags.writeable
        del view
        before = copied.copy()
        context.decode([102])
        assert np.array_equal(copied, before) and not np.array_equal(context.logits(), before)


@pytest.mark.parametrize(
    "derive", [lambda a: a, lambda a: a[5:], lambda a: a[::2].reshape(2, -1)[1], memoryview, lambda a: a.base]
)
def test_while_a_view_lives_nothing_may_change_it(model: pyggml.Model, derive: object) -> None:
    context = model.context(n_threads=1, n_ctx=256)
    context.decode([100, 101])
    saved = context.save_state()
    kept = derive(context.logits(copy=False))  # type: ignore[operator]
    for change in (context.close, model.close, lambda: context.decode([5]), lambda: context.load_state(saved),
                   lambda: list(context.generate([5])), lambda: pyggml.backend_free(force=True)):  # fmt: skip
        with pytest.raises(BufferError, match="1 array"):
            change()
    assert not context.closed and not model.closed
    assert context.length() == 2
    del kept
    context.decode([5])
    context.close()


def test_a_view_keeps_its_context(model: pyggml.Model) -> None:
    context = model.context(n_threads=1, n_ctx=256)
    context.decode([100])
    expected, view = context.logits(), context.logits(copy=False)
    del context
    gc.collect()
    assert np.array_equal(view, expected)
    with pytest.warns(ResourceWarning, match="never closed"):
        del view
        gc.collect()


# -- embeddings ------------------------------------------------------------------------------------------------------------


def test_pooling_against_numpy(files: Path) -> None:
    tokens = [5, 200, 201, 202, 2]
    with pyggml.Model(bert(files)) as model:
        with model.context(n_threads=1, embeddings=True, pooling="none") as context:
            context.decode(tokens)
            each = np.stack([context.embeddings(index) for index in range(5)])
            np.testing.assert_allclose(context.embed(tokens, normalize=False), each[-1], atol=1e-5)
            with pytest.raises(ValueError, match="does not pool"):
                context.embeddings_seq()
        for pooling, expected in (
            ("mean", each.mean(axis=0)),
            ("unspecified", each.mean(axis=0)),
            ("cls", each[0]),
            ("last", each[-1]),
        ):
            with model.context(n_threads=1, embeddings=True, pooling=pooling) as context:
                context.decode(tokens)
                vector = context.embeddings_seq()
                assert vector.shape == (model.n_embd,)
                np.testing.assert_allclose(vector, expected, atol=1e-4)
                normal = context.embed(tokens)
                assert normal.dtype == np.float32 and abs(np.linalg.norm(normal) - 1) < 1e-5
                np.testing.assert_allclose(normal, expected / np.linalg.norm(expected), atol=1e-4)
                view = context.embeddings_seq(copy=False)
                with pytest.raises(BufferError):
                    context.embed(tokens)
                del view


def test_embed_several_and_sequences_at_once(files: Path) -> None:
    with pyggml.Model(bert(files)) as model, model.context(n_threads=1, embeddings=True, n_seq_max=2) as context:
        both = context.embed(["one text", "another"])
        assert both.shape == (2, model.n_embd)
        assert np.array_equal(both[1], context.embed("another"))
        batch = Batch()
        for seq_id, text in enumerate(("one text", "another")):
            for place, token in enumerate(model.vocab.tokenize(text)):
                batch.add(token, place, seq_id, logits=True)
        context.decode(batch)
        for seq_id in (0, 1):
            vector = context.embeddings_seq(seq_id)
            np.testing.assert_allclose(vector / np.linalg.norm(vector), both[seq_id], atol=1e-4)
        with pytest.raises(ValueError, match="n_ubatch"):
            context.embed(list(range(100, 700)))
        for nothing in ([], ()):
            with pytest.raises(ValueError, match="nothing to embed"):
                context.embed(nothing)
        for wrong in (5, None, b"text", [1.5], ["a", 5]):
            with pytest.raises(TypeError):
                context.embed(wrong)  # type: ignore[arg-type]


def test_a_reranker_scores(files: Path) -> None:
    with pyggml.Model(rerank(files)) as model, model.context(n_threads=1, embeddings=True) as context:
        assert model.n_classes == 1
        scores = [context.embed([*range(100, 105), 2, *rest], normalize=False) for rest in ([200, 201], [300, 301])]
        assert scores[0].shape == (1,) and scores[0] != scores[1]


def test_embeddings_of_a_decoder(files: Path) -> None:
    with (
        pyggml.Model(llama(files)) as model,
        model.context(n_threads=1, n_ctx=256, embeddings=True, pooling="mean") as context,
    ):
        vector = context.embed([100, 101, 102])
        assert vector.shape == (64,) and context.length() == 0
        with pytest.raises(ValueError, match="to generate text"):
            context.generate("x")


# -- sequences -------------------------------------------------------------------------------------------------------------


def test_remove_and_copy(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=512, n_seq_max=2) as context:
        context.decode([100, 101, 102, 103])
        context.copy(0, 1)
        assert context.length(1) == 4
        assert context.remove(0, 2) and context.length(0) == 2 and context.length(1) == 4
        context.decode([200], seq_id=1)
        continued = context.logits()
        context.clear()
        assert context.length(0) == context.length(1) == 0
        context.decode([100, 101, 102, 103, 200])
        np.testing.assert_allclose(context.logits(), continued, atol=2e-2)


def test_a_recurrent_state_cannot_go_back_by_a_part(files: Path) -> None:
    with pyggml.Model(mamba(files)) as model, model.context(n_threads=1, n_ctx=256) as context:
        assert model.is_recurrent
        context.decode([100, 101, 102, 103])
        assert not context.remove(0, 2) and not context.remove(0, 1, 2)
        assert context.length() == 4
        assert context.remove(0, 4) and context.remove(0, 0) and context.length() == 0


# -- limits, errors --------------------------------------------------------------------------------------------------------


def test_a_full_context(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        with pytest.raises(pyggml.ContextFullError, match="256 tokens"):
            context.decode([5] * 257)
        context.clear()
        context.decode([5] * 256)
        with pytest.raises(pyggml.ContextFullError):
            context.decode([5])
        context.remove(0, 100)
        context.decode([5])
        assert context.length() == 101


def test_positions_that_do_not_fit(model: pyggml.Model) -> None:
    with model.context(n_threads=1, n_ctx=256) as context:
        context.decode([5, 6, 7])
        for position in (1, 9):
            with pytest.raises(ValueError, match="positions"):
                context.decode(Batch.of([8], position=position))
        context.decode([8])
        assert context.length() == 4


def test_more_memory_than_there_is(demo_model: Path) -> None:
    tokens = 1 << 22  # of 23 KiB each
    with open("/proc/meminfo") as lines:
        if int(next(lines).split()[1]) > tokens * 23:
            pytest.skip("this machine has that much")
    with pyggml.Model(demo_model) as model:
        start = time.perf_counter()
        with pytest.raises(pyggml.OutOfMemoryError, match=f"no context of {tokens} tokens") as caught:
            model.context(n_threads=1, n_ctx=tokens)
        assert isinstance(caught.value, MemoryError)
        assert time.perf_counter() - start < 10
        model.context(n_threads=1, n_ctx=256).close()


WRONG = [
    ({"n_ctx": -1}, ValueError), ({"n_ctx": 2**31}, ValueError), ({"n_ctx": 2**64}, ValueError), ({"n_ctx": 1.5}, TypeError),
    ({"n_ctx": True}, TypeError), ({"n_ctx": "4096"}, TypeError), ({"n_batch": 0}, ValueError), ({"n_batch": 2**63}, ValueError),
    ({"n_ubatch": 0}, ValueError), ({"n_ubatch": None}, TypeError), ({"n_seq_max": 0}, ValueError), ({"n_seq_max": 257}, ValueError),
    ({"n_threads": -1}, ValueError), ({"n_threads": 10**6}, ValueError), ({"n_threads_batch": 0.5}, TypeError),
    ({"embeddings": 1}, TypeError), ({"pooling": "median"}, ValueError), ({"pooling": 1}, TypeError), ({"type_k": "q9_0"}, ValueError),
    ({"type_v": None}, TypeError), ({"flash_attention": "maybe"}, ValueError), ({"kv_unified": "yes"}, TypeError),
    ({"swa_full": None}, TypeError), ({"offload_kqv": 0}, TypeError), ({"rope_freq_base": math.nan}, ValueError),
    ({"rope_freq_scale": -1.0}, ValueError), ({"rope_freq_base": "x"}, TypeError), ({"abort": 5}, TypeError), ({"n_context": 5}, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error"), WRONG, ids=lambda one: str(one)[:30])
def test_wrong_options_name_themselves(model: pyggml.Model, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        model.context(**options)


def test_wrong_arguments(model: pyggml.Model) -> None:
    with pytest.raises(TypeError, match="must be a Model"):
        pyggml.Context("model")  # type: ignore[arg-type]
    with model.context(n_threads=1, n_ctx=256) as context:
        cases: list[tuple[type[Exception], str, object]] = [
            (ValueError, "empty", lambda: context.decode([])),
            (ValueError, "from 0 to 1023, not 1024", lambda: context.decode([5, 1024])),
            (ValueError, "not -1", lambda: context.decode([-1])),
            (ValueError, str(2**64), lambda: context.decode([2**64])),
            (TypeError, "sequence of tokens", lambda: context.decode("text")),
            (TypeError, "sequence of tokens", lambda: context.decode(5)),
            (TypeError, "not float", lambda: context.decode([1.0])),
            (TypeError, "not bool", lambda: context.decode([True])),
            (ValueError, "n_seq_max=1", lambda: context.decode([5], seq_id=1)),
            (ValueError, "n_seq_max=1", lambda: context.decode(Batch.of([5], seq_id=3))),
            (ValueError, "no token 5000", lambda: context.decode(Batch.of([5000]))),
            (ValueError, "seq_id", lambda: context.length(-1)),
            (TypeError, "seq_id", lambda: context.length("0")),
            (ValueError, "start", lambda: context.remove(0, -5)),
            (ValueError, "stop", lambda: context.remove(0, 0, 2**40)),
            (ValueError, "target", lambda: context.copy(0, 5)),
            (TypeError, "source", lambda: context.copy(None, 0)),
            (TypeError, "copy", lambda: (context.decode([5]), context.logits(copy=1))),
            (TypeError, "index", lambda: context.logits(0.5)),
            (ValueError, "index", lambda: context.logits(2**80)),
            (ValueError, "seq_id", lambda: context.embeddings_seq(7)),
        ]
        for error, words, call in cases:
            with pytest.raises(error, match=words):
                call()  # type: ignore[operator]
        context.decode(np.array([5, 6], dtype=np.int64))


def test_wrong_batches() -> None:
    batch = Batch()
    for error, arguments in (
        (TypeError, ("a", 0)), (TypeError, (1.0, 0)), (TypeError, (True, 0)), (ValueError, (-1, 0)), (ValueError, (2**31, 0)),
        (ValueError, (1, -1)), (ValueError, (1, 2**31)), (ValueError, (1, 0, [])), (ValueError, (1, 0, [0, 0])),
        (ValueError, (1, 0, -1)), (TypeError, (1, 0, "0")), (TypeError, (1, 0, [None])),
    ):  # fmt: skip
        with pytest.raises(error):
            batch.add(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="logits"):
        batch.add(1, 0, logits=1)  # type: ignore[arg-type]
    assert len(batch) == 0, "a refused entry leaves nothing behind"
    with pytest.raises(TypeError):
        Batch.of("text")  # type: ignore[arg-type]


def test_only_the_vocabulary(files: Path) -> None:
    with pyggml.Model(llama(files), vocab_only=True) as model:
        assert model.vocab.tokenize("x")
        with pytest.raises(ValueError, match="vocab_only"):
            model.context()


# -- aborting --------------------------------------------------------------------------------------------------------------


def test_abort_from_another_thread(demo_model: Path) -> None:
    with pyggml.Model(demo_model) as model, model.context(n_threads=1, n_ctx=2048) as context:
        context.abort()  # nothing runs: nothing happens
        context.decode([100])
        timer = threading.Timer(0.2, context.abort)
        timer.start()
        start = time.perf_counter()
        with pytest.raises(pyggml.AbortedError):
            context.decode([101] * 1500)
        assert time.perf_counter() - start < 2
        timer.join()
        context.clear()
        context.decode([100, 101])
        assert context.length() == 2


def test_abort_callback(demo_model: Path) -> None:
    calls: list[float] = []
    answer: list[object] = [False]

    def abort() -> bool:
        calls.append(time.perf_counter())
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return bool(answer[0])

    with pyggml.Model(demo_model) as model, model.context(n_threads=1, n_ctx=2048, abort=abort) as context:
        context.decode(list(range(100, 228)))
        assert calls, "it is not called"
        for answer[0], error in ((True, pyggml.AbortedError), (ZeroDivisionError("mine"), ZeroDivisionError)):
            with pytest.raises(error):
                context.decode([101] * 1000)
        answer[0] = False
        context.clear()
        context.decode([100])
        assert context.logits().shape == (49152,)


def test_positions_beyond_the_learned_ones_are_refused(files: Path) -> None:
    """Upstream reads beyond the table and aborts."""
    with pyggml.Model(bert(files)) as model:
        limit = model.n_positions
        assert limit == model.n_ctx_train > 0
        with model.context(n_ctx=2 * limit, n_batch=2 * limit, n_ubatch=2 * limit, embeddings=True) as context:
            with pytest.raises(ValueError, match=f"{limit} positions"):
                context.embed([5] * (limit + 1))
            assert context.embed([5] * limit).shape == (model.n_embd,)
    with pyggml.Model(llama(files)) as model:
        assert model.n_positions == 0
