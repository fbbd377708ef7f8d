"""Sleeping, waking, and going away."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from engines import wait_until
from serving import Server, generating, tiny


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("sleep") / "log"
    with Server(tiny(), "-c", "4096", "-np", "2", "--metrics", log=log) as server:
        yield server.ready()


def metric(server: Server, name: str) -> float:
    return float(next(line.split()[-1] for line in server.get("/metrics").text.splitlines() if line.startswith(name)))


@pytest.mark.parametrize("mode", ["free", "reset", "auto", None])
def test_sleep_and_wake_on_demand(server: Server, mode: str | None) -> None:
    before = metric(server, "pyggml:sleeps_total")
    answer = server.post("/sleep", json={"mode": mode}) if mode else server.post("/sleep")
    reached = "free" if mode == "free" else "reset"
    assert answer.status_code == 200 and answer.json()["mode"] == reached
    assert server.sleeping() and metric(server, "pyggml:sleeping ") == 1
    assert server.post("/sleep").status_code == 200  # again: it sleeps on
    assert server.post("/wake").json() == {"is_sleeping": False, "state": "ready"}
    assert server.post("/wake").status_code == 200
    assert metric(server, "pyggml:sleeps_total") > before
    assert metric(server, "pyggml:last_wake_seconds") > 0
    last = server.get("/props").json()["sleep"]["last"]
    assert last["reason"] == "request" and last["mode"] in ("free", "reset")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/completion", {"prompt": "a", "n_predict": 2, "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"content": "a"}),
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_the_first_request_after_sleep(server: Server, path: str, body: dict) -> None:
    assert server.post("/sleep").status_code == 200 and server.sleeping()
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert not server.sleeping()


def test_ten_wakers_at_once_wake_it_once(server: Server) -> None:
    server.post("/sleep")
    before = metric(server, "pyggml:wakes_total")
    with ThreadPoolExecutor(10) as pool:
        wakes = [pool.submit(server.post, "/wake") for _ in range(5)]
        asks = [pool.submit(server.post, "/completion", json={"prompt": "a", "n_predict": 2}) for _ in range(5)]
        assert [one.result().status_code for one in wakes + asks] == [200] * 10
    assert metric(server, "pyggml:wakes_total") == before + 1


def test_it_does_not_sleep_while_requests_run_beyond_the_limit(server: Server) -> None:
    with generating(server):
        answer = server.post("/sleep", json={"timeout": 0.1})
        assert answer.status_code == 409 and answer.json()["error"]["code"] == 409
        assert not server.sleeping()
    wait_until(lambda: server.busy() == 0, 5)


def test_a_running_answer_ends_before_it_sleeps(server: Server) -> None:
    with generating(server, 300) as lines, ThreadPoolExecutor(1) as pool:
        asleep = pool.submit(server.post, "/sleep")
        assert '"stop":true' in list(lines)[-1]
        assert asleep.result().status_code == 200
    assert server.sleeping()
    server.post("/wake")


def test_idle_sleep_which_status_neither_delays_nor_ends(tmp_path: Path) -> None:
    env = {"LLAMA_ARG_SLEEP_IDLE_SECONDS": "0.7", "LLAMA_ARG_ENDPOINT_METRICS": "1"}
    with Server(tiny(), "-c", "256", log=tmp_path / "log", **env) as server:
        server.ready()
        server.post("/tokenize", json={"content": "a"})
        start = time.monotonic()
        paths = ("/health", "/props", "/models", "/metrics", "/slots", "/is_sleeping")

        def poll() -> bool:
            assert all(server.get(path).status_code == 200 for path in paths)
            return server.sleeping()

        wait_until(poll, 5)
        assert time.monotonic() - start > 0.5
        props = server.get("/props").json()
        assert props["is_sleeping"] and props["sleep"]["last"]["reason"] == "idle"
        for _ in range(5):
            assert poll()
        assert server.post("/tokenize", json={"content": "a"}).status_code == 200
        wait_until(server.sleeping, 5)
        server.signal()
        assert server.process.wait(10) == 0  # SIGTERM asleep


def test_a_wake_that_fails_is_an_answer(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny().read_bytes())
    with Server(model, "-c", "256", "--metrics", log=tmp_path / "log") as server:
        server.ready().post("/sleep")
        away = model.rename(tmp_path / "away.gguf")
        for path, body in (("/wake", {}), ("/tokenize", {"content": "a"})):
            answer = server.post(path, json=body)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
            assert "loaded again" in answer.json()["error"]["message"]
        assert server.sleeping() and server.get("/health").status_code == 200
        assert metric(server, "pyggml:wake_failures_total") == 2
        away.rename(model)
        assert server.post("/tokenize", json={"content": "a"}).status_code == 200


# -- going away ----------------------------------------------------------------------------------------------------------


def test_it_answers_while_it_loads_and_goes_when_told(tmp_path: Path) -> None:
    with Server(None, "-c", "512", log=tmp_path / "log") as server:
        answer = server.get("/health")
        assert answer.status_code == 503 and answer.json()["error"]["message"] == "Loading model"
        assert "retry-after" in answer.headers
        assert server.post("/completion", json={"prompt": "a"}).status_code == 503
        server.signal()
        assert server.process.wait(10) == 0


@pytest.mark.parametrize("path", ["/sleep", "/wake", "/tokenize"])
def test_what_it_is_doing_is_answered_before_it_goes(tmp_path: Path, path: str) -> None:
    with Server(None, "-c", "512", log=tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        server.ready()
        if path != "/sleep":
            server.post("/sleep")
        answer = pool.submit(server.post, path, json={"content": "a"} if path == "/tokenize" else {})
        time.sleep(0.2)
        server.signal()
        assert answer.result().status_code == 200
        assert server.process.wait(10) == 0


def test_a_running_stream_ends_well_before_it_goes(tmp_path: Path) -> None:
    with Server(None, "-c", "512", log=tmp_path / "log") as server:
        with generating(server.ready(), 60) as lines:
            server.signal()
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.get(server.url + "/health", trust_env=False)
            assert '"stop":true' in list(lines)[-1]
        assert server.process.wait(10) == 0


def test_a_stream_that_is_too_long_ends_with_an_error(tmp_path: Path) -> None:
    with Server(None, "-c", "8192", "--drain-seconds", "1", log=tmp_path / "log") as server:
        with generating(server.ready()) as lines:
            server.signal()
            last = list(lines)[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == 503
        assert server.process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, number: int) -> None:
    with Server(None, "-c", "8192", log=tmp_path / "log") as server, generating(server.ready()):
        server.signal(number)
        time.sleep(0.3)
        assert server.process.poll() is None
        start = time.monotonic()
        server.signal(number)
        assert server.process.wait(5) == 128 + number
        assert time.monotonic() - start < 1
