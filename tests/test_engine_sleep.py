"""How an engine sleeps and wakes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import models
import pytest
from engines import GREEDY, MODELS, serve, wait_until

import pyggml
from pyggml import EngineState, SleepMode


@pytest.fixture
def engine() -> Iterator[pyggml.Engine]:
    with serve(models.llama(MODELS), parallel=4, ctx_size=4096) as engine:
        yield engine


def text(engine: pyggml.Engine, prompt: str = "one two", n: int = 12) -> str:
    return str(engine.complete(prompt, max_tokens=n, **GREEDY)["choices"][0]["text"])


def anonymous_kib() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise AssertionError


@pytest.mark.parametrize("mode", ["free", "reset"])
def test_the_answer_after_a_sleep_is_the_same(engine: pyggml.Engine, mode: str) -> None:
    expected = text(engine)
    for _ in range(3):
        report = engine.sleep(mode)
        assert report.mode == mode and not report.in_the_way
        assert (report.release is not None) == (mode == "reset")
        assert engine.is_sleeping
        # with reset nothing is loaded any more
        assert (pyggml.lib.ggml_backend_reg_count() == 0) == (mode == "reset")
        assert text(engine) == expected
        assert engine.state is EngineState.READY
    info = engine.info()
    assert (info.n_sleeps, info.n_wakes, info.n_wake_failures) == (3, 3, 0)
    assert info.sleep_reason == "request" and info.wake_seconds > 0


def test_a_deeper_sleep(engine: pyggml.Engine) -> None:
    assert engine.sleep("free").mode is SleepMode.FREE
    assert engine.sleep("reset").mode is SleepMode.RESET
    assert engine.sleep("free").mode is SleepMode.RESET
    assert pyggml.lib.ggml_backend_reg_count() == 0
    engine.wake()
    assert engine.sleep("free").mode is SleepMode.FREE


def test_status_neither_wakes_nor_delays(engine: pyggml.Engine) -> None:
    text(engine)
    slots, props, metrics = engine.slots(), engine.props(), engine.metrics()
    engine.set_sleep_idle_seconds(0.3)
    end = time.monotonic() + 5
    while not engine.is_sleeping:  # asked all the time
        engine.slots(), engine.metrics(), engine.props(), engine.request("/health").read()
        assert time.monotonic() < end
    assert engine.info().sleep_reason == "idle"
    assert engine.slots() == slots
    assert {**engine.props(), "is_sleeping": False} == props
    assert "prompt_tokens_total" in metrics and engine.metrics().split("gauge")[0] == metrics.split("gauge")[0]
    assert engine.request("/v1/models").status == 200
    assert engine.is_sleeping and engine.info().n_wakes == 0


def test_the_idle_flag_of_llama_server() -> None:
    with serve(models.llama(MODELS), parallel=1, ctx_size=64, args=["--sleep-idle-seconds", "1"]) as engine:
        start = time.monotonic()
        wait_until(lambda: engine.is_sleeping, 4)
        assert time.monotonic() - start > 0.8
        engine.set_sleep_idle_seconds(None)
        engine.wake()
        time.sleep(1.2)
        assert not engine.is_sleeping


def test_ten_wake_it_once(engine: pyggml.Engine) -> None:
    expected = text(engine)
    for _ in range(3):
        before = engine.info().n_wakes
        engine.sleep("reset")
        with ThreadPoolExecutor(10) as pool:
            assert set(pool.map(lambda _: text(engine), range(10))) == {expected}
        assert engine.info().n_wakes == before + 1


def test_back_to_back_requests_with_a_short_idle_time() -> None:
    """Upstream's server frees the model under a request that waits for nothing, and dies."""
    content = "word " * 20000
    with serve(models.llama(MODELS), parallel=1, ctx_size=256, sleep_idle_seconds=0) as engine:
        expected = len(engine.tokenize(content))
        end = time.monotonic() + 3

        def hammer(_: int) -> int:
            n = 0
            while time.monotonic() < end:
                assert len(engine.tokenize(content)) == expected
                n += 1
            return n

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(hammer, range(4))) > 10
        wait_until(lambda: engine.is_sleeping)
        assert engine.info().n_sleeps >= 1


def test_forced_sleeps_under_clients(engine: pyggml.Engine) -> None:
    prompts = ["a b", "c d", "e f", "g h"]
    expected = {one: text(engine, one, 6) for one in prompts}
    stop = threading.Event()

    def client(prompt: str) -> int:
        n = 0
        while not stop.is_set():
            assert engine.complete(prompt, max_tokens=6, **GREEDY)["usage"]["completion_tokens"] == 6
            n += 1
        return n

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, one) for one in prompts]
        for number in range(15):
            engine.sleep(("free", "reset")[number % 2])
            time.sleep(0.03)
        stop.set()
        assert sum(one.result() for one in clients) >= 15
    assert {one: text(engine, one, 6) for one in prompts} == expected


def test_a_sleep_waits_for_a_stream_or_refuses(engine: pyggml.Engine) -> None:
    stream = engine.complete("one", stream=True, max_tokens=400, ignore_eos=True, **GREEDY)
    next(stream)
    with pytest.raises(pyggml.EngineError, match="still running") as caught:
        engine.sleep(timeout=0)
    assert caught.value.status == 409
    sleeper = threading.Thread(target=engine.sleep)
    sleeper.start()
    chunks = list(stream)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    sleeper.join(10)
    assert engine.is_sleeping


@pytest.mark.parametrize("mode", ["free", "reset"])
def test_a_wake_that_fails_is_an_answer(tmp_path: Path, mode: str) -> None:
    path, away = tmp_path / "model.gguf", tmp_path / "away.gguf"
    shutil.copy(models.llama(MODELS), path)
    with serve(path, parallel=2, ctx_size=256) as engine:
        expected = text(engine)
        engine.sleep(mode)
        path.rename(away)

        def attempt(_: int) -> pyggml.EngineError:
            with pytest.raises(pyggml.EngineError, match=r"could not be loaded again.*model\.gguf") as caught:
                text(engine)
            return caught.value

        with ThreadPoolExecutor(5) as pool:
            assert {one.status for one in pool.map(attempt, range(5))} == {503}
        with pytest.raises(pyggml.EngineError, match=r"model\.gguf"):
            engine.wake()
        info = engine.info()
        assert info.state is EngineState.SLEEPING and info.n_wake_failures >= 2 and "model.gguf" in info.error
        assert (pyggml.lib.ggml_backend_reg_count() == 0) == (mode == "reset")  # given back again
        path.write_bytes(away.read_bytes()[:4000])  # a part of it
        with pytest.raises(pyggml.EngineError):
            text(engine)
        path.unlink()
        away.rename(path)
        assert text(engine) == expected
        assert engine.info().error == ""


def test_a_cancelled_request_does_not_wait_for_the_wake(engine: pyggml.Engine) -> None:
    engine.sleep("free")

    async def main() -> None:
        task = asyncio.create_task(engine.aio.complete("one", max_tokens=1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert text(engine)


def test_fifty_sleeps_do_not_grow(engine: pyggml.Engine) -> None:
    figures = []
    for number in range(50):
        text(engine, "word " * 200, 2)
        engine.sleep(("free", "reset")[number % 2])
        if number >= 10:
            figures.append(anonymous_kib())
    assert max(figures[-10:]) - max(figures[:10]) < 3000, figures


def test_fitted_parameters_stay(engine: pyggml.Engine) -> None:
    with serve(models.llama(MODELS), args=["--logit-bias", "5-100"]) as fitted:
        first = fitted.props()
        for _ in range(2):
            fitted.sleep("reset")
            fitted.wake()
            assert fitted.props() == first
            assert [one["n_ctx"] for one in fitted.slots()] == [first["default_generation_settings"]["n_ctx"]] * 4


def test_draft_and_projector_come_back() -> None:
    with serve(
        models.llama(MODELS), draft=models.draft(MODELS), mmproj=models.mmproj(MODELS), parallel=1, ctx_size=256
    ) as engine:
        expected = text(engine)
        assert engine.props()["modalities"]["vision"]
        for _ in range(3):
            engine.sleep("reset")
            assert text(engine) == expected


# -- with others in the process ------------------------------------------------------------------------------------------


def test_reset_stays_at_free_while_another_engine_lives(engine: pyggml.Engine) -> None:
    with serve(models.llama(MODELS, seed=3), parallel=1, ctx_size=64) as other:
        report = engine.sleep("reset")
        assert report.mode is SleepMode.FREE
        assert report.in_the_way == (repr(other),)
        assert text(other, n=2)
    report = engine.sleep("reset")  # now nobody is
    assert report.mode is SleepMode.RESET and not report.in_the_way
    assert text(engine)


def test_reset_stays_at_free_while_a_model_lives(engine: pyggml.Engine) -> None:
    with pyggml.Model(models.llama(MODELS, seed=3)) as model:
        assert engine.sleep("reset").in_the_way == (repr(model),)
        assert model.vocab.tokenize("a")


def test_two_engines_sleep_together(engine: pyggml.Engine) -> None:
    with serve(models.llama(MODELS, seed=3), parallel=1, ctx_size=64) as other:
        other.sleep("free")
        assert engine.sleep("reset").mode is SleepMode.RESET  # a sleeping engine holds nothing
        assert text(other, n=2) and text(engine, n=2)


def test_backend_free_names_an_engine_and_closes_it_if_forced(engine: pyggml.Engine) -> None:
    with pytest.raises(pyggml.BackendInUseError, match="Engine") as caught:
        pyggml.backend_free()
    assert caught.value.holders == (repr(engine),)
    engine.sleep("free")
    assert pyggml.backend_free().released  # asleep it is not in the way
    assert text(engine)
    pyggml.backend_free(force=True)
    assert engine.closed


def test_backend_free_while_engines_wake_and_sleep(engine: pyggml.Engine) -> None:
    expected = text(engine)
    stop = threading.Event()

    def free() -> int:
        n = 0
        while not stop.is_set():
            try:
                pyggml.backend_free()
                n += 1
            except pyggml.BackendInUseError:
                pass
            time.sleep(0.001)
        return n

    with ThreadPoolExecutor(1) as pool:
        freeing = pool.submit(free)
        for number in range(20):
            engine.sleep(("free", "reset")[number % 2])
            assert text(engine) == expected
        stop.set()
        freeing.result()


def test_closing_a_sleeping_and_a_waking_engine() -> None:
    for delay in (0.0, 0.005, 0.02, None):
        engine = serve(models.llama(MODELS), parallel=1, ctx_size=64)
        engine.sleep("reset")
        if delay is not None:
            waker = threading.Thread(target=_ignoring, args=(engine,))
            waker.start()
            time.sleep(delay)
        engine.close()
        if delay is not None:
            waker.join(10)
            assert not waker.is_alive()


def _ignoring(engine: pyggml.Engine) -> None:
    with contextlib.suppress(pyggml.PyggmlError):
        text(engine)
