"""`pyggml.Engine`: answers, streams, cancelling, errors, and its life."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path

import models
import numpy as np
import pytest
from engines import GREEDY, MODELS, serve, wait_until
from support import run_python

import pyggml
from pyggml import EngineState
from pyggml.engine import routes

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="session")
def tiny() -> Path:
    return models.llama(MODELS)


@pytest.fixture(scope="module")
def tiny_file(tiny: Path) -> str:
    return str(tiny)


@pytest.fixture
def engine(tiny: Path) -> Iterator[pyggml.Engine]:
    with serve(tiny, parallel=4, ctx_size=4096) as engine:
        yield engine


def busy_slots(engine: pyggml.Engine) -> int:
    return sum(slot["is_processing"] for slot in engine.slots())


def content(answer: dict) -> str:
    return str(answer["choices"][0]["message"]["content"])


# -- answers -------------------------------------------------------------------------------------------------------------


def test_greedy_chat_is_what_a_context_generates(demo_model: Path) -> None:
    with pyggml.Model(demo_model) as model, model.context(n_ctx=512) as context:
        prompt = model.apply_chat_template(MESSAGES)
        expected = "".join(context.generate(prompt, max_tokens=16, temperature=0.0))
    with pyggml.Engine(demo_model, parallel=1, ctx_size=512) as engine:
        assert engine.apply_template(MESSAGES) == prompt
        assert content(engine.chat(MESSAGES, max_tokens=16, **GREEDY)) == expected


def test_a_stream_is_the_answer_in_pieces(engine: pyggml.Engine) -> None:
    whole = engine.complete("one two", max_tokens=20, **GREEDY)
    chunks = list(engine.complete("one two", stream=True, max_tokens=20, **GREEDY))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert len(chunks) >= 10
    assert whole["usage"]["completion_tokens"] == 20


def test_sixteen_at_once_get_what_one_gets_alone(engine: pyggml.Engine) -> None:
    prompts = [f"prompt number {number}" for number in range(16)]
    alone = [engine.complete(one, max_tokens=12, **GREEDY)["choices"][0]["text"] for one in prompts]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda one: engine.complete(one, max_tokens=12, **GREEDY), prompts))
    assert [one["choices"][0]["text"] for one in together] == alone
    assert engine.info().n_busy == 0


def test_asyncio_streams_and_answers(engine: pyggml.Engine) -> None:
    expected = engine.complete("one two", max_tokens=20, **GREEDY)["choices"][0]["text"]

    async def stream() -> str:
        pieces = []
        async for chunk in await engine.aio.complete("one two", stream=True, max_tokens=20, **GREEDY):
            pieces.append(chunk["choices"][0]["text"])
        return "".join(pieces)

    async def main() -> None:
        answers = await asyncio.gather(*(stream() for _ in range(12)))
        assert set(answers) == {expected}
        plain = await engine.aio.chat(MESSAGES, max_tokens=3)
        assert plain["usage"]["completion_tokens"] == 3
        assert await engine.aio.detokenize(await engine.aio.tokenize("one two")) == "one two"
        assert len(await engine.aio.slots()) == 4

    for _ in range(2):  # each time another event loop
        asyncio.run(main())


def test_tokens_props_slots_and_metrics(engine: pyggml.Engine) -> None:
    tokens = engine.tokenize("Hello world")
    assert engine.detokenize(tokens) == "Hello world"
    assert engine.props()["total_slots"] == 4
    assert [slot["id"] for slot in engine.slots()] == [0, 1, 2, 3]
    engine.complete("a", max_tokens=2)
    assert "llamacpp:prompt_tokens_total" in engine.metrics()
    assert engine.request("/health").read() == b'{"status":"ok"}'
    assert ("POST", "/slots/:id_slot") in routes()


def test_embeddings(tmp_path: Path) -> None:
    texts = ["one", "two three"]
    path = models.bert(MODELS)
    with serve(path, embeddings=True, parallel=2, ctx_size=256) as engine:
        vectors = engine.embed(texts)
        single = engine.embed(texts[1])
    assert vectors.shape == (2, 64) and vectors.dtype == np.float32
    np.testing.assert_allclose(single, vectors[1], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-4)


def test_rerank() -> None:
    with serve(models.rerank(MODELS), reranking=True, parallel=1, ctx_size=256) as engine:
        results = engine.rerank("query", ["one", "two", "three"])
    assert sorted(one["index"] for one in results) == [0, 1, 2]
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)


def test_lora_scale(tiny: Path) -> None:
    adapter = models.lora(MODELS)

    def text(engine: pyggml.Engine) -> str:
        return str(engine.complete("one two", max_tokens=12, cache_prompt=False, **GREEDY)["choices"][0]["text"])

    with serve(tiny, parallel=1, ctx_size=256) as engine:
        plain = text(engine)
    with serve(tiny, parallel=1, ctx_size=256, lora=[(adapter, 1.0)]) as engine:
        adapted = text(engine)
        assert adapted != plain
        engine.request("/lora-adapters", [{"id": 0, "scale": 0.0}]).read()
        assert text(engine) == plain
        engine.sleep("free")
        assert text(engine) == plain  # the scale that was set is kept


def test_empty_slots_are_taken_from_the_lowest(engine: pyggml.Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: engine.complete(one, max_tokens=30), ["first words", "other things"]))
    used = [slot["id"] for slot in engine.slots() if "id_task" in slot]
    assert used == [0, 1]


# -- ending early --------------------------------------------------------------------------------------------------------


def test_a_closed_stream_frees_its_slot(engine: pyggml.Engine) -> None:
    with closing(engine.complete("one", stream=True, max_tokens=-1, ignore_eos=True)) as stream:
        next(stream)
        assert busy_slots(engine) == 1
    start = time.monotonic()
    wait_until(lambda: busy_slots(engine) == 0, 1.0)
    assert time.monotonic() - start < 1.0


def test_an_abandoned_stream_frees_its_slot(engine: pyggml.Engine) -> None:
    stream = engine.complete("one", stream=True, max_tokens=-1, ignore_eos=True)
    next(stream)
    del stream
    gc.collect()
    wait_until(lambda: busy_slots(engine) == 0, 1.0)


def test_cancelling_a_plain_request(engine: pyggml.Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(engine.aio.complete("one", max_tokens=-1, ignore_eos=True))
        while not busy_slots(engine):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        while busy_slots(engine):
            assert time.monotonic() - start < 1.0
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_closing_an_asynchronous_stream(engine: pyggml.Engine) -> None:
    async def main() -> None:
        stream = await engine.aio.complete("one", stream=True, max_tokens=-1, ignore_eos=True)
        async with aclosing(stream):
            await anext(stream)
        await asyncio.sleep(0)
        wait_until(lambda: busy_slots(engine) == 0, 1.0)

    asyncio.run(main())


def test_a_slow_reader_stops_its_worker_not_its_memory(engine: pyggml.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyggml import engine_aio

    monkeypatch.setattr(engine_aio, "HIGH_WATER", 1000)

    async def main() -> None:
        body = {"prompt": "one", "n_predict": 200, "ignore_eos": True, **GREEDY}
        plain = json.loads(await (await engine.aio.request("/completion", body)).read())
        response = await engine.aio.request("/completion", {**body, "stream": True})
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert response._paused and response._buffered < 200_000
        lines = (await response.read()).split(b"\n\n")
        assert "".join(json.loads(line[6:])["content"] for line in lines if line) == plain["content"]
        assert not response._paused

    asyncio.run(main())


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b"\xff\xfe", 400),
        ("/v1/chat/completions", {"messages": 3}, 400),
        ("/v1/chat/completions", {}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "temperature": "hot"}, 400),
        ("/v1/completions", {"prompt": {"a": 1}}, 400),
        ("/completion", {"prompt": "a", "n_predict": "x"}, 400),
        ("/detokenize", {"tokens": ["x"]}, 400),
        ("/v1/embeddings", {"input": "a"}, 501),
        ("/infill", b"{", 501),
        ("/nothing/here", {}, 404),
        ("/completion", None, 404),
        ("/slots/0?action=save", {"filename": "a"}, 501),
    ],
)
def test_what_is_wrong_is_answered(engine: pyggml.Engine, route: str, body: object, status: int) -> None:
    response = engine.request(route, body)
    answer = json.loads(response.read())
    assert response.status == status
    assert answer["error"]["message"]
    assert engine.complete("still", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_bad_request_raises(engine: pyggml.Engine) -> None:
    with pytest.raises(pyggml.EngineError, match="JSON") as caught:
        engine._call(pyggml.engine.Call("/completion", b"{ secret", json.loads))
    assert caught.value.status == 400
    assert b"secret" not in caught.value.body
    with pytest.raises(pyggml.EngineError, match="context") as caught:
        engine.complete("word " * 3000)
    assert caught.value.status == 400
    with pytest.raises(pyggml.EngineError):
        list(engine.complete("word " * 3000, stream=True))


@pytest.mark.parametrize(
    "args",
    [
        ["--no-such-flag"],
        ["--help"],
        ["--version"],
        ["-cl"],
        ["--list_devices"],
        ["--completion-bash"],
        ["--parallel"],
        ["--parallel", "many"],
        ["--pooling", "nonsense"],
        ["--chat-template", "{% if %}"],
        ["--log-file", "x"],
        ["-m", "other.gguf"],
        ["-hf", "some/model"],
        ["--tools", "all"],
        ["--device", "NoSuchDevice"],
    ],
)
def test_flags_that_are_not_valid(tiny: Path, args: list[str]) -> None:
    with pytest.raises(ValueError):
        serve(tiny, args=args)


def test_a_value_may_look_like_a_flag(tiny: Path) -> None:
    with serve(tiny, parallel=1, ctx_size=64, args=["--alias", "--version"]) as engine:
        assert engine.props()["model_alias"] == "--version"


def test_the_environment_counts_only_if_asked(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "3")
    with serve(tiny, ctx_size=256) as engine:
        assert engine.info().n_slots == 4
    with serve(tiny, ctx_size=256, env=True) as engine:
        assert engine.info().n_slots == 3


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        serve(tmp_path / "missing.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(pyggml.ModelLoadError, match=r"broken\.gguf"):
        serve(broken)


def test_a_load_that_fails_says_why(tiny: Path) -> None:
    other = models.llama(MODELS, n_embd=32)
    with pytest.raises(pyggml.ModelLoadError, match="lora"):
        serve(other, parallel=1, ctx_size=64, lora=[models.lora(MODELS)])


# -- its life ------------------------------------------------------------------------------------------------------------


def test_closing_ends_what_runs(tiny: Path) -> None:
    engine = serve(tiny, parallel=2, ctx_size=4096)
    outcomes: list[object] = []

    def run(stream: bool) -> None:
        try:
            if stream:
                list(engine.complete("one", stream=True, max_tokens=-1, ignore_eos=True))
            else:
                engine.complete("one", max_tokens=-1, ignore_eos=True)
            outcomes.append("done")
        except pyggml.PyggmlError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: busy_slots(engine) == 2)
    engine.close()
    engine.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(outcomes) == 6 and "done" not in outcomes
    assert engine.state is EngineState.CLOSED
    with pytest.raises(pyggml.ClosedError):
        engine.complete("one")


def test_closing_with_a_stream_that_would_outlive_its_client(engine: pyggml.Engine) -> None:
    body = {"prompt": "one", "n_predict": -1, "stream": True, "ignore_eos": True}
    response = engine.request("/completion", body, headers={"X-Conversation-Id": "abc"})
    next(iter(response))
    response.close()
    time.sleep(0.2)
    assert busy_slots(engine) == 1  # it goes on, for the client to come back
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 5


def test_closing_while_it_loads(tiny: Path) -> None:
    engine = serve(tiny, parallel=1, ctx_size=64, wait=False)
    engine.close()


def test_states_are_told(tiny: Path) -> None:
    seen: list[tuple[str, str]] = []
    with serve(tiny, parallel=1, ctx_size=64, on_state=lambda state, text: seen.append((state, text))) as engine:
        engine.sleep("free")
        engine.wake()
    states = [state for state, _ in seen]
    assert [one for one, after in zip(states, [*states[1:], ""], strict=True) if one != after] == [
        "loading",
        "ready",
        "sleeping",
        "waking",
        "ready",
        "closed",
    ]
    assert any("text_model" in text for _, text in seen)


def test_log_lines_reach_logging(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "pyggml.native"), serve(tiny, parallel=1, ctx_size=64) as engine:
        engine.complete("one", max_tokens=1)
    lines = [record.getMessage() for record in caplog.records]
    assert any("loading model" in line for line in lines)
    assert any("slot" in line for line in lines)
    caplog.clear()
    with caplog.at_level("ERROR", "pyggml.native"), serve(tiny, parallel=1, ctx_size=64):
        pass
    assert not caplog.records


def test_two_engines_at_once(tiny: Path) -> None:
    other = models.llama(MODELS, seed=7)
    with serve(tiny, parallel=2, ctx_size=256) as one, serve(other, parallel=2, ctx_size=256) as two:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: (one, two)[n % 2].complete("a b", max_tokens=8, **GREEDY), range(8)))
        texts = [answer["choices"][0]["text"] for answer in answers]
    assert len(set(texts[0::2])) == 1 and len(set(texts[1::2])) == 1 and texts[0] != texts[1]


def test_an_engine_that_nobody_closed(tiny_file: str) -> None:
    with pytest.warns(ResourceWarning, match="never closed"):
        serve(tiny_file, parallel=1, ctx_size=64)
        gc.collect()


def test_interpreter_exit_without_close(tiny_file: str) -> None:
    done = run_python(
        """
import sys, threading, pyggml
engine = pyggml.Engine(sys.argv[1], args=["-t", "1"], parallel=2, ctx_size=1024)
stream = engine.complete("one", stream=True, max_tokens=-1, ignore_eos=True)
next(stream)
threading.Thread(target=lambda: list(engine.complete("two", stream=True, max_tokens=-1)), daemon=True).start()
print("end")
""",
        tiny_file,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"


def test_a_fork_cannot_use_it(tiny_file: str) -> None:
    done = run_python(
        """
import os, sys, warnings, pyggml
warnings.simplefilter("ignore", DeprecationWarning)
engine = pyggml.Engine(sys.argv[1], args=["-t", "1"], parallel=1, ctx_size=64)
pid = os.fork()
if pid == 0:
    try:
        engine.complete("one", max_tokens=1)
    except pyggml.ForkedError:
        engine.close()
        sys.exit(7)  # the ordinary way, with all that runs at exit
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
engine.complete("one", max_tokens=1)
engine.close()
""",
        tiny_file,
    )
    assert done.returncode == 0, done.stderr


def test_an_abort_in_the_engine_ends_the_process(tiny_file: str) -> None:
    done = run_python(
        """
import sys, threading, pyggml
from pyggml.engine_state import Sleeper

def abort(self, mode):
    pyggml.lib.ggml_abort(b"somewhere.cpp", 1, b"%s", pyggml.ffi.new("char[]", b"it went wrong"))

Sleeper.asleep = abort  # the engine's own thread calls it
engine = pyggml.Engine(sys.argv[1], args=["-t", "1"], parallel=1, ctx_size=64)
threading.Thread(target=engine.sleep).start()
threading.Event().wait(30)
""",
        tiny_file,
    )
    assert done.returncode == -signal.SIGABRT
    assert "it went wrong" in done.stderr.partition("Fatal Python error")[0].strip().splitlines()[-1]


def test_before_it_is_loaded(tiny: Path) -> None:
    with serve(tiny, parallel=1, ctx_size=64, wait=False) as engine:
        answers = []
        while engine.state is EngineState.LOADING:
            response = engine.request("/health")
            answers.append((response.status, response.read()))
            with contextlib.suppress(pyggml.EngineError):
                engine.sleep()
        assert engine.wait_loaded(0)
        assert engine.request("/health").status == 200
    assert {status for status, _ in answers} <= {503, 200}
    assert all(b"Loading model" in body for status, body in answers if status == 503)


def test_event_loops_leave_nothing_behind(engine: pyggml.Engine) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        await engine.aio.tokenize("a")
        stream = await engine.aio.complete("one", stream=True, max_tokens=-1, ignore_eos=True)
        await anext(stream)
        await stream.aclose()

    asyncio.run(main())
    before = descriptors()
    for _ in range(20):
        asyncio.run(main())
        engine.tokenize("a")
    gc.collect()
    assert descriptors() <= before
    wait_until(lambda: busy_slots(engine) == 0, 1.0)


def test_many_more_requests_than_workers(engine: pyggml.Engine) -> None:
    async def main() -> None:
        answers = await asyncio.gather(*(engine.aio.complete(f"{n}", max_tokens=3) for n in range(200)))
        assert all(answer["usage"]["completion_tokens"] == 3 for answer in answers)

    waiting = threading.Thread(target=asyncio.run, args=(main(),))
    waiting.start()
    wait_until(lambda: engine.info().n_requests > 50)
    assert engine.info().n_workers <= 4 + 8 + 8 + 2
    start = time.monotonic()
    engine.tokenize("a"), engine.slots(), engine.props()  # do not wait behind them
    assert engine.info().n_requests > 20 and time.monotonic() - start < 2
    waiting.join(30)
    assert not waiting.is_alive()
